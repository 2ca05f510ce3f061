#!/usr/bin/env python3
"""Makes the golden files beside this script from one safetensors file of reference results.

    python3 make.py golden_large_075.safetensors

The file holds `input_u8` [8,224,224,3], `featuremap_480_nhwc` [8,7,7,480] and `pooled_480` [8,480], computed by
TensorFlow.js 4.22 (CPU) from the network as @vladmandic/human 3.3.6 ships it. Written are the pictures as PNG files
(lossless) and a safetensors file with the results alone. Standard library only.

Pictures: china and flower are scikit-learn's sample pictures (CC BY 2.0, by danielbuechele and vultilion); the others
are sample pictures of scikit-image (see its data README for each credit). All resized to 224x224.
"""

import json
import pathlib
import struct
import sys
import zlib

HERE = pathlib.Path(__file__).parent
TARGET = "golden_large_075.safetensors"


def read(path):
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__")
    body = data[8 + size :]
    tensors = {
        name: (info["dtype"], info["shape"], body[slice(*info["data_offsets"])])
        for name, info in header.items()
    }
    return metadata, tensors


def write(path, metadata, tensors):
    header, offset = {"__metadata__": metadata}, 0
    for name, (dtype, shape, data) in tensors.items():
        extent = [offset, offset + len(data)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": extent}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(data for _, _, data in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def filtered(row, above):
    """The row behind the PNG filter that leaves the smallest bytes."""

    def paeth(left, up, corner):
        guess = left + up - corner
        return min((left, up, corner), key=lambda value: abs(guess - value))

    left = bytes(3) + row[:-3]
    corner = bytes(3) + above[:-3]
    forms = [
        (1, bytes((x - a) & 255 for x, a in zip(row, left))),
        (2, bytes((x - b) & 255 for x, b in zip(row, above))),
        (4, bytes((x - paeth(*near)) & 255 for x, *near in zip(row, left, above, corner))),
    ]
    kind, data = min(forms, key=lambda form: sum(min(x, 256 - x) for x in form[1]))
    return bytes([kind]) + data


def png(width, height, rgb):
    def chunk(kind, data):
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    rows = [bytes(3 * width)] + [rgb[y * 3 * width : (y + 1) * 3 * width] for y in range(height)]
    body = b"".join(filtered(row, above) for above, row in zip(rows, rows[1:]))
    start = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", start)
        + chunk(b"IDAT", zlib.compress(body, 9))
        + chunk(b"IEND", b"")
    )


def main():
    metadata, tensors = read(sys.argv[1])
    _, (count, height, width, _), pixels = tensors.pop("input_u8")
    each = height * width * 3
    (HERE / "pictures").mkdir(exist_ok=True)
    for index, name in zip(range(count), metadata["names"].split(",")):
        path = HERE / "pictures" / f"{index:02}_{name.rsplit('.', 1)[0]}.png"
        path.write_bytes(png(width, height, pixels[index * each : (index + 1) * each]))
    metadata = {
        "names": metadata["names"],
        "layout": "results for the pictures in pictures/, by name; computed by TensorFlow.js 4.22 CPU backend",
    }
    write(HERE / TARGET, metadata, tensors)


main()
