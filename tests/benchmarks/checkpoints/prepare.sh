#!/bin/bash
# Make the image `hog` (a Python with the program in it) for Docker and podman, and its files for runc.
set -eu
for _ in $(seq 100); do docker version >/dev/null 2>&1 && break; sleep 0.2; done
docker load -q </data/image.tar
docker create --network none --name made gleaner/pythia:demo >/dev/null
docker cp /hog.py made:/hog.py
docker commit --change 'ENTRYPOINT ["python3"]' made hog >/dev/null
docker rm made >/dev/null
mkdir -p /data/rootfs
docker create --network none --name made hog >/dev/null
docker export made | tar -x -C /data/rootfs
docker rm made >/dev/null
mkdir -p /data/images
docker save hog >/data/images/hog.tar
chmod -R a+rX /data/images
podman --storage-driver overlay load -q </data/images/hog.tar >/dev/null
rm /data/image.tar
chmod 755 /data
