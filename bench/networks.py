"""The convolutions of three networks, each once: ResNet-50, MobileNet and a U-Net for images of 256 x 256."""

from typing import Any, NamedTuple

__all__ = ["NETWORKS", "SAMPLES", "Layer"]

#: Images at a time: one, and as in training.
SAMPLES = 1, 32


class Layer(NamedTuple):
    """A convolution of square images and a square kernel; of an odd kernel, padded by half of it."""

    channels: int
    size: int
    out_channels: int
    kernel: int
    stride: int = 1
    groups: int = 1

    def problem(self, samples: int) -> dict[str, Any]:
        """Settings of a problem of `bench.problems`."""
        return {
            "x": [samples, self.channels, self.size, self.size],
            "weight": [self.out_channels, self.kernel, self.kernel],
            "stride": self.stride,
            "padding": self.kernel // 2,
            "groups": self.groups,
        }


def _resnet():
    """Blocks of three: to few channels, 3 x 3 among these, to four times as many; and the shortcut of each stage."""
    yield Layer(3, 224, 64, 7, 2)
    channels, size = 64, 56
    for few in (64, 128, 256, 512):
        stride = 1 if few == 64 else 2
        yield from (Layer(channels, size, few, 1), Layer(few, size, few, 3, stride))
        yield Layer(channels, size, 4 * few, 1, stride)
        channels, size = 4 * few, size // stride
        yield from (Layer(few, size, channels, 1), Layer(channels, size, few, 1), Layer(few, size, few, 3))


def _mobilenet():
    """A kernel for each channel, then 1 x 1 over all of them."""
    yield Layer(3, 224, 32, 3, 2)
    channels, size = 32, 112
    deeper = (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (1024, 2), (1024, 1)
    for out_channels, stride in deeper:
        yield Layer(channels, size, channels, 3, stride, channels)
        size //= stride
        yield Layer(channels, size, out_channels, 1)
        channels = out_channels


def _unet():
    """Two of 3 x 3 at each size on the way down, and on the way up after the halves of both are joined."""
    channels, size = 3, 256
    for out_channels in (64, 128, 256, 512, 1024):
        yield from (Layer(channels, size, out_channels, 3), Layer(out_channels, size, out_channels, 3))
        channels, size = out_channels, size // 2
    size *= 2
    while channels > 64:
        size *= 2
        yield Layer(channels, size, channels // 2, 3)
        channels //= 2
    yield Layer(64, 256, 2, 1)


def _unique(layers):
    return tuple(dict.fromkeys(layers))


#: The layers of each network.
NETWORKS = {"ResNet-50": _unique(_resnet()), "MobileNet": _unique(_mobilenet()), "U-Net": _unique(_unet())}
