# cmake/ - the CMake package, made by configure.
cmakedir = $(libdir)/cmake/mpix-ep
nodist_cmake_DATA = cmake/mpix-epConfig.cmake cmake/mpix-epConfigVersion.cmake
