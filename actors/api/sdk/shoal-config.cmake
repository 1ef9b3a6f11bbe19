# find_package(shoal): the target shoal::shoal, for programs of C++ actors. It works wherever its folder lies.
if(TARGET shoal::shoal)
  return()
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  set(shoal_FOUND FALSE)
  set(shoal_NOT_FOUND_MESSAGE "Shoal's headers need GCC 12 or later (C++20 with coroutines); this is ${CMAKE_CXX_COMPILER_VERSION}: set CXX to a newer one")
  return()
endif()
get_filename_component(_shoal_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
add_library(shoal::shoal SHARED IMPORTED)
set_target_properties(shoal::shoal PROPERTIES
  IMPORTED_LOCATION "${_shoal_prefix}/lib/libshoal.so.@VERSION@"
  IMPORTED_SONAME "libshoal.so.@VERSION@"
  INTERFACE_INCLUDE_DIRECTORIES "${_shoal_prefix}/include/shoal;${_shoal_prefix}/include/shoal/third_party"
  INTERFACE_COMPILE_DEFINITIONS "ASIO_STANDALONE;ASIO_SEPARATE_COMPILATION;ASIO_HAS_STD_ALIGNED_ALLOC=1"
  INTERFACE_COMPILE_FEATURES cxx_std_20
  # Workers are processes of the program's file, and a build id tells one build of it from another.
  INTERFACE_LINK_OPTIONS "LINKER:--build-id")
unset(_shoal_prefix)
