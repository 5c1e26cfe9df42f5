#!/bin/sh
# Installs what is missing of the Debian packages that train_gpt can use; does nothing when all are there.
# Without root and without sudo it prints the line to run, and the build goes on with what there is.
set -u
packages="gcc g++ make libc6-dev libgomp1 libdnnl-dev libopenmpi-dev openmpi-bin libcmocka-dev libstb-dev libpcre2-dev
          gnuplot-nox bible-kjv bible-kjv-text libreadline8"
missing=""
for package in $packages; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -z "$missing" ]; then
    echo "setup: everything is installed"
    exit 0
fi
line="apt-get install -y --no-install-recommends$missing"
if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: this is not Debian; going on without:$missing"
elif [ "$(id -u)" = 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || echo "setup: apt-get update failed; trying with the lists that are there"
    # shellcheck disable=SC2086
    $line || { echo "setup: could not install:$missing" >&2; exit 1; }
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    sudo apt-get update -qq || echo "setup: apt-get update failed; trying with the lists that are there"
    # shellcheck disable=SC2086
    sudo DEBIAN_FRONTEND=noninteractive $line || { echo "setup: could not install:$missing" >&2; exit 1; }
else
    echo "setup: not root. Run this, or go on without:"
    echo "  sudo apt-get update && sudo $line"
fi
