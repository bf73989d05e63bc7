#!/usr/bin/env bash
# ./test.sh           installs what is needed, builds, runs every test (under 20 minutes on 2 cores)
# ./test.sh --quick   unit tests of a built tree, under 60 s
# ./test.sh --full    also sanitizers, fuzzing, clang-tidy and the long property tests (hours);
#                     parts of it alone: ./test.sh --full [tests] [asan] [tsan] [fuzz] [tidy]
# Ends with "N passed, N failed, N skipped"; exit 0 when nothing failed.
set -u
cd "$(dirname "$0")" || exit 1
mode=normal
parts=()
for argument in "$@"; do
  case $argument in
    --quick) mode=quick ;;
    --full) mode=full ;;
    tests | asan | tsan | fuzz | tidy) parts+=("$argument") ;;
    *) mode=wrong ;;
  esac
done
if [ "$mode" = wrong ] || { [ ${#parts[@]} -gt 0 ] && [ "$mode" != full ]; }; then
  echo "usage: ./test.sh [--quick | --full [tests] [asan] [tsan] [fuzz] [tidy]]" >&2
  exit 2
fi

purposes=(build test)
[ "$mode" = full ] && purposes+=(full)
tools/install_deps.sh "${purposes[@]}" || exit 1
exec /usr/bin/python3 tools/run_tests.py --mode "$mode" ${parts[@]+"${parts[@]}"}
