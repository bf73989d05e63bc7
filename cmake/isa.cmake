# deepmint_isa_sources(<target> <file.cc>...)
#
# Compiles each file once per instruction set, with that set's flags only, and adds the objects to <target>.
# Inside the file: DEEPMINT_ISA_NS is the namespace to put everything in (isa_x86_64, isa_avx2, isa_avx512,
# isa_avx512vnni, isa_avx512bf16) and DEEPMINT_ISA_LEVEL its number (0..4), so `#if DEEPMINT_ISA_LEVEL >= 2` selects code.
# Rule: such a file includes intrinsics, <cstddef>/<cstdint> and plain structs only. A shared inline function or template
# compiled here may be the copy the linker keeps, and then dies on an older machine (tools/check_isa.py looks for that).
set(DEEPMINT_ISA_NAMES x86_64 avx2 avx512 avx512vnni avx512bf16)
set(DEEPMINT_ISA_FLAGS_x86_64 "")
set(DEEPMINT_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi -mbmi2 -mlzcnt -mpopcnt)
set(DEEPMINT_ISA_FLAGS_avx512 ${DEEPMINT_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512cd
    -mprefer-vector-width=512)
set(DEEPMINT_ISA_FLAGS_avx512vnni ${DEEPMINT_ISA_FLAGS_avx512} -mavx512vnni)
set(DEEPMINT_ISA_FLAGS_avx512bf16 ${DEEPMINT_ISA_FLAGS_avx512vnni} -mavx512bf16 -mavx512vbmi)

function(deepmint_isa_sources target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # One source for all sets: what one of them does not use is no mistake. On the source, so that it comes after -Wall.
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -Wno-unused-function -Wno-unused-const-variable)
  endif()
  set(level 0)
  foreach(isa ${DEEPMINT_ISA_NAMES})
    set(object ${target}_${isa})
    add_library(${object} OBJECT ${ARGN})
    target_include_directories(${object} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
    target_link_libraries(${object} PRIVATE deepmint_flags)
    # gcc 12 takes its own _mm512_undefined_* headers for uninitialised variables of ours (GCC bug 105593).
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${object} PRIVATE -Wno-uninitialized -Wno-maybe-uninitialized)
    endif()
    # O3 for the kernels; -fno-math-errno and -fno-trapping-math change no result bits.
    target_compile_options(${object} PRIVATE ${DEEPMINT_ISA_FLAGS_${isa}} -fno-math-errno -fno-trapping-math)
    if(CMAKE_BUILD_TYPE STREQUAL "Release")
      target_compile_options(${object} PRIVATE -O3)
    endif()
    target_compile_definitions(${object} PRIVATE DEEPMINT_ISA_NS=isa_${isa} DEEPMINT_ISA_LEVEL=${level})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${object}>)
    math(EXPR level "${level}+1")
  endforeach()
endfunction()
