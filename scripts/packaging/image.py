#!/usr/bin/env python3
"""image.py OUT VERSION FILES... — an OCI image layout as one tar, for each processor the directory that is its root.

FILES are ARCHITECTURE=DIRECTORY, with the architecture as OCI calls it (amd64, arm64). The image starts the guard; there is no shell
in it, nor anything else but what the directories hold. Same bytes from the same files: entries are sorted, owned by root, and as old
as SOURCE_DATE_EPOCH says.
"""
import datetime
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
CREATED = datetime.datetime.fromtimestamp(EPOCH, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

# The image's names in a layout: its tag, and the full name that podman and containerd give to a loaded image.
REF = "org.opencontainers.image.ref.name"
NAME = "io.containerd.image.name"


def entry(name, mode, kind=tarfile.REGTYPE, size=0):
    info = tarfile.TarInfo(name)
    info.mode, info.type, info.size, info.mtime = mode, kind, size, EPOCH
    return info


def layer(root):
    """A tar of what is below a directory."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for directory, below, files in os.walk(root):
            below.sort()
            if directory != root:
                tar.addfile(entry(os.path.relpath(directory, root), 0o755, tarfile.DIRTYPE))
            for name in sorted(files):
                path = os.path.join(directory, name)
                with open(path, "rb") as file:
                    content = file.read()
                mode = 0o755 if os.access(path, os.X_OK) else 0o644
                tar.addfile(entry(os.path.relpath(path, root), mode, size=len(content)), io.BytesIO(content))
    return data.getvalue()


class Layout:
    def __init__(self):
        self.files = {}

    def add(self, content, media_type, **more):
        digest = hashlib.sha256(content).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content), **more}

    def add_json(self, value, media_type, **more):
        return self.add(encoded(value), media_type, **more)


def encoded(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def image(layout, architecture, root, version):
    tar = layer(root)
    packed = io.BytesIO()
    # No name or time in the header.
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=9, mtime=0) as file:
        file.write(tar)
    annotations = {
        "org.opencontainers.image.title": "pagekeeper",
        "org.opencontainers.image.description": "Keeps the log files of databases out of the page cache",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
        "org.opencontainers.image.created": CREATED,
    }
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": CREATED,
        "config": {
            # Root, so that it may have its capabilities.
            "User": "0:0",
            "Entrypoint": ["/usr/bin/pagekeeper"],
            "Cmd": ["guard", "--config", "/etc/pagekeeper/guard.toml"],
            "WorkingDir": "/",
            "Labels": annotations,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}"]},
        "history": [{"created": CREATED, "created_by": "scripts/packaging/image.py"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": layout.add_json(config, "application/vnd.oci.image.config.v1+json"),
        "layers": [layout.add(packed.getvalue(), "application/vnd.oci.image.layer.v1.tar+gzip")],
        "annotations": annotations,
    }
    return layout.add_json(manifest, manifest["mediaType"], platform={"architecture": architecture, "os": "linux"})


def main():
    out, version, *roots = sys.argv[1:]
    layout = Layout()
    manifests = [image(layout, *root.split("=", 1), version) for root in roots]
    index_type = "application/vnd.oci.image.index.v1+json"
    # One image index for all processors: a client picks its own. It is the only entry, since podman could not choose between several.
    inner = {"schemaVersion": 2, "mediaType": index_type, "manifests": manifests}
    named = [layout.add_json(inner, index_type, annotations={REF: version, NAME: f"localhost/pagekeeper:{version}"})]
    layout.files["index.json"] = encoded({"schemaVersion": 2, "mediaType": index_type, "manifests": named})
    layout.files["oci-layout"] = encoded({"imageLayoutVersion": "1.0.0"})
    with tarfile.open(out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for directory in ("blobs", "blobs/sha256"):
            tar.addfile(entry(directory, 0o755, tarfile.DIRTYPE))
        for name, content in sorted(layout.files.items()):
            tar.addfile(entry(name, 0o644, size=len(content)), io.BytesIO(content))


main()
