#!/usr/bin/env bash
# tools/install_deps.sh PURPOSE...   installs the Debian packages that deps/apt.txt lists under [PURPOSE].
# Quiet and quick when everything is there. Exit 1 with one line when packages are missing and cannot be installed.
set -u
cd "$(dirname "$0")/.." || exit 1

[ -r deps/apt.txt ] || { echo "deps/apt.txt is missing" >&2; exit 1; }
wanted=()
for purpose in "$@"; do
  while IFS= read -r package; do wanted+=("$package"); done < <(
    awk -v section="[$purpose]" '/^\[/ {inside = ($0 == section); next} inside && NF && $1 !~ /^#/ {print $1}' deps/apt.txt)
done
missing=()
installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' 2>/dev/null | awk '$1 == "ii" {print $2}' | sort -u)
for package in "${wanted[@]}"; do
  grep -qxF "$package" <<< "$installed" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "missing packages; as root run: apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "installing ${#missing[@]} packages: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } > "$log" 2>&1; then
  tail -n 5 "$log" >&2
  echo "could not install: ${missing[*]}" >&2
  exit 1
fi
