#!/usr/bin/env python3
"""Makes the torchvision fixtures beside this script: two small networks, pictures, and torchvision's features.

    python3 torchvision.py

Needs torch and torchvision; the fixtures that are checked in come from torchvision 0.14.1. The networks are
`torchvision.models.mobilenetv3.MobileNetV3` itself, of few channels and random weights. Their batch norms have seen
random pictures and are disturbed afterwards, so that folding matters and pictures differ in their features. Small is stored in f32 with a classifier and
ImageNet's (cut down to 5 classes), Large in f16 without any; both with their running statistics and counters, as
`state_dict()` gives them. `torchvision_expected.safetensors` holds u8 pictures, NHWC, and for each network the pooled
vector and, for Small, what `classifier[0]` and `classifier[1]` (hard-swish) make of it.
"""

import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).parent
# This script must not be what `import torchvision` finds.
sys.path = [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != HERE.resolve()]

import torch
from torchvision.models.mobilenetv3 import MobileNetV3, _mobilenet_v3_conf

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
SIZES = [(64, 48), (33, 47)]
DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.uint8: "U8",
}


def write(name, tensors, metadata):
    header, body = {"__metadata__": metadata}, b""
    for key, tensor in tensors.items():
        data = tensor.contiguous().numpy().tobytes()
        header[key] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (HERE / name).write_bytes(struct.pack("<Q", len(text)) + text + body)


def pictures(count, height, width):
    """Colour gradients with spots and noise, as bytes."""
    y = torch.linspace(0, 1, height).view(1, height, 1, 1)
    x = torch.linspace(0, 1, width).view(1, 1, width, 1)
    slopes = torch.rand(2, count, 1, 1, 3) * 6 - 3
    waves = torch.sin(slopes[0] * 7 * y) * torch.cos(slopes[1] * 9 * x)
    values = slopes[0] * y + slopes[1] * x + waves + torch.randn(count, height, width, 3) / 4
    return ((values / 4 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)


def normalised(rgb):
    return (rgb.permute(0, 3, 1, 2).float() / 255 - MEAN) / STD


def network(arch, last_channel):
    setting, _ = _mobilenet_v3_conf(arch, width_mult=0.125)
    model = MobileNetV3(setting, last_channel=last_channel, num_classes=5)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    with torch.no_grad():
        for norm in norms:
            assert norm.eps == 1e-3
            norm.momentum = 0.2  # 0.01 would take hundreds of pictures to learn what passes
            norm.weight.copy_(torch.rand_like(norm.weight) + 0.5)
            norm.bias.copy_(torch.randn_like(norm.bias) / 3)
        for module in model.modules():
            if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)) and module.bias is not None:
                module.bias.copy_(torch.randn_like(module.bias) / 3)
        for linear in (model.classifier[0], model.classifier[3]):
            linear.weight *= 10  # from torchvision's 0.01
        model.train()
        for _ in range(40):
            model(normalised(pictures(8, 64, 64)))
        for norm in norms:
            deviation = norm.running_var.sqrt()
            norm.running_mean += torch.randn_like(deviation) * deviation / 10
            norm.running_var *= torch.rand_like(deviation) / 2 + 0.75
    return model.eval()


def main():
    torch.manual_seed(20)
    torch.set_num_threads(1)
    shown = {f"pictures_{h}x{w}": pictures(2, h, w) for h, w in SIZES}
    expected = dict(shown)
    for arch, short, dtype in [
        ("mobilenet_v3_small", "small", torch.float32),
        ("mobilenet_v3_large", "large", torch.float16),
    ]:
        model = network(arch, 32)
        state = {
            key: value.to(dtype) if value.is_floating_point() else value
            for key, value in model.state_dict().items()
        }
        model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in state.items()})
        if short == "large":
            state = {key: value for key, value in state.items() if not key.startswith("classifier")}
        write(f"torchvision_{short}.safetensors", state, {"format": "pt"})
        with torch.no_grad():
            for key, rgb in shown.items():
                size = key.removeprefix("pictures_")
                pooled = model.avgpool(model.features(normalised(rgb))).flatten(1)
                expected[f"{short}_pooled_{size}"] = pooled
                features = model.classifier[1](model.classifier[0](pooled))
                if short == "small":
                    expected[f"{short}_features_{size}"] = features
                print(short, size, "largest feature", pooled.abs().max().item(), features.abs().max().item())
    write("torchvision_expected.safetensors", expected, {"layout": "pictures NHWC RGB, features [n, channels]"})


main()
