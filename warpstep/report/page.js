"use strict";
(() => {
  const data = JSON.parse(document.getElementById("steps").textContent);
  const { warp: WARP, banks: BANKS, word: WORD, sector: SECTOR } = data.limits;
  const find = (id) => document.getElementById(id);
  const make = (tag, look, text) => {
    const element = document.createElement(tag);
    if (look) element.className = look;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const warps = Math.ceil(data.threads / WARP);
  const isOn = (mask, lane) => (mask >>> lane) & 1;
  const countLanes = (mask) => Array.from({ length: WARP }, (_, lane) => isOn(mask, lane)).reduce((a, b) => a + b, 0);
  let warp = 0, steps = [], at = 0;

  document.querySelector("#player h1").textContent = data.kernel;
  find("about").textContent = `Block (${data.block.join(", ")}), step by step` +
    (data.cut ? "; only the first steps were kept" : "") + ". The arrow keys go one step back and on.";
  for (let i = 0; i < warps; i++) {
    const option = make("option", "", `${i} (threads ${i * WARP} to ${Math.min((i + 1) * WARP, data.threads) - 1})`);
    option.value = i;
    find("warp").append(option);
  }
  const lines = new Map();
  for (const [file, line, text] of data.source) {
    const item = make("li", file < 0 ? "title" : "");
    if (file >= 0) {
      item.append(make("b", "", line), text);
      lines.set(`${file}:${line}`, item);
    } else item.textContent = text;
    find("source").append(item);
  }
  for (const [file, line] of data.steps) lines.get(`${file}:${line}`)?.classList.add("runs");

  const addressOf = (places, lane) => places.length === 2 ? places[0] + places[1] * lane : places[lane];
  const nameOf = (array, address) => {
    const [, , size, origin, shape] = array;
    let index = Math.floor((address - origin) / size);
    if (!shape.length) return `+${address - origin} B`;
    const parts = [];
    for (const extent of [...shape].reverse()) {
      parts.unshift(index % extent);
      index = Math.floor(index / extent);
    }
    return `[${parts.join(", ")}]`;
  };

  function showLanes(state, mask, label) {
    const lanes = make("div", "lanes");
    for (let lane = 0; lane < WARP; lane++) {
      const cell = make("span", isOn(mask, lane) ? "on" : "", lane);
      if (label && isOn(mask, lane)) {
        cell.append(make("em", "", label(lane)));
        cell.title = `lane ${lane}: ${label(lane)}`;
      }
      lanes.append(cell);
    }
    state.append(lanes);
  }

  function showBanks(state, mask, places, bytes, conflicts) {
    const words = Array.from({ length: BANKS }, () => new Set());
    for (let lane = 0; lane < WARP; lane++) {
      if (!isOn(mask, lane)) continue;
      const first = Math.floor(addressOf(places, lane) / WORD);
      const last = Math.floor((addressOf(places, lane) + bytes - 1) / WORD);
      for (let word = first; word <= last; word++) words[word % BANKS].add(word);
    }
    const banks = make("div", "banks");
    words.forEach((set, bank) => {
      const cell = make("span", set.size > 1 && conflicts ? "many" : set.size ? "one" : "", set.size || "·");
      cell.title = `bank ${bank}: ${set.size} word${set.size === 1 ? "" : "s"}`;
      banks.append(cell);
    });
    state.append(make("div", "soft note", "banks 0 to 31, and the words that each serves:"), banks);
  }

  function showSectors(state, array, mask, places, bytes) {
    const used = new Map();
    for (let lane = 0; lane < WARP; lane++) {
      if (!isOn(mask, lane)) continue;
      for (let byte = addressOf(places, lane), end = byte + bytes; byte < end; byte++) {
        const sector = Math.floor(byte / SECTOR);
        if (!used.has(sector)) used.set(sector, new Set());
        used.get(sector).add(byte);
      }
    }
    const table = make("table");
    const head = make("tr");
    ["sector begins at", `bytes used of ${SECTOR}`].forEach((title) => head.append(make("th", "", title)));
    table.append(head);
    const sectors = [...used.keys()].sort((a, b) => a - b);
    for (const sector of sectors.slice(0, 12)) {
      const row = make("tr");
      row.append(make("td", "", nameOf(array, Math.max(sector * SECTOR, array[3]))));
      row.append(make("td", used.get(sector).size < SECTOR ? "over" : "", used.get(sector).size));
      table.append(row);
    }
    state.append(table);
    if (sectors.length > 12) state.append(make("div", "soft", `and ${sectors.length - 12} more`));
  }

  // Scrolls the list alone: scrollIntoView would move the page too, and one that has this page in a frame.
  function reveal(item, list) {
    const inner = item.getBoundingClientRect();
    const outer = list.getBoundingClientRect();
    if (inner.top < outer.top) list.scrollTop -= outer.top - inner.top;
    else if (inner.bottom > outer.bottom) list.scrollTop += inner.bottom - outer.bottom;
  }

  function show() {
    const [file, line, masks, barrier, accesses] = data.steps[steps[at]];
    document.querySelectorAll("#source .here").forEach((item) => item.classList.remove("here"));
    const item = lines.get(`${file}:${line}`);
    item?.classList.add("here");
    if (item) reveal(item, find("source"));
    find("slider").value = at;
    find("count").textContent = `step ${at + 1} of ${steps.length}, line ${line}`;
    const state = find("state");
    state.replaceChildren();
    const active = countLanes(masks[warp]);
    state.append(make("h2", "", `${active} of ${Math.min(WARP, data.threads - warp * WARP)} lanes are active` +
      (barrier ? ` and arrive at a barrier of the ${barrier}` : "")));
    const mine = accesses.filter((access) => access[3][warp]);
    if (!mine.length) showLanes(state, masks[warp]);
    for (const [number, op, bytes, byWarp] of mine) {
      const array = data.arrays[number];
      const [mask, cost, ideal, places] = byWarp[warp];
      const shared = array[1] === "shared";
      const heading = make("h2", "", `${op} ${array[0]} (${array[1]}): `);
      const unit = (count) => `${count} ${shared ? "wavefront" : "sector"}${count === 1 ? "" : "s"}`;
      heading.append(make("span", cost > ideal ? "over" : "", cost > ideal ? `${unit(cost)}, ${ideal} needed` : unit(cost)));
      state.append(heading);
      showLanes(state, mask, (lane) => nameOf(array, addressOf(places, lane)));
      if (shared) showBanks(state, mask, places, bytes, cost > ideal);
      else if (array[1] === "global") showSectors(state, array, mask, places, bytes);
    }
  }

  function go(to) {
    at = Math.max(0, Math.min(steps.length - 1, to));
    show();
  }
  function choose(number) {
    const before = steps[at] ?? 0;
    warp = number;
    steps = data.steps.flatMap((step, i) => (step[2][warp] ? [i] : []));
    find("slider").max = steps.length - 1;
    const nearest = steps.findIndex((i) => i >= before);
    go(nearest < 0 ? steps.length - 1 : nearest);
  }
  find("slider").addEventListener("input", (event) => go(Number(event.target.value)));
  find("back").addEventListener("click", () => go(at - 1));
  find("forth").addEventListener("click", () => go(at + 1));
  find("warp").addEventListener("change", (event) => choose(Number(event.target.value)));
  document.addEventListener("keydown", (event) => {
    if (event.target.tagName === "SELECT" || event.ctrlKey || event.metaKey || event.altKey) return;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    go(to);
  });
  choose(0);
  const wanted = /^#(\d+)$/.exec(location.hash);
  if (wanted) go(Number(wanted[1]) - 1);
})();
