# Flags that every target of ours gets. Third-party headers come in as SYSTEM and stay quiet.
add_library(deepmint_flags INTERFACE)
target_compile_options(deepmint_flags INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough -Wvla -Werror
  # Bits must not depend on what the optimiser finds to fuse: an FMA appears only where an intrinsic says so.
  -ffp-contract=off -fno-fast-math
  -fdiagnostics-color=auto)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # libstdc++ 12's own std::stable_sort calls a function that it has marked deprecated; GCC keeps quiet about it, clang does not.
  target_compile_options(deepmint_flags INTERFACE -Wthread-safety -Wno-deprecated-declarations)
endif()
if(DEEPMINT_SANITIZE)
  target_compile_options(deepmint_flags INTERFACE -fsanitize=${DEEPMINT_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(deepmint_flags INTERFACE -fsanitize=${DEEPMINT_SANITIZE})
endif()
if(DEEPMINT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "DEEPMINT_FUZZ needs clang: configure with the 'fuzz' preset")
  endif()
  target_compile_options(deepmint_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
