/* module.h - parts of the library that are files of their own, loaded when they are
 * first needed. */
#ifndef MPIX_BASE_MODULE_H
#define MPIX_BASE_MODULE_H
#include <stddef.h>

/*
 * Loads `given`, or if that is empty `file` from the folder of this library (of an installed
 * program that holds it: from the folder of libraries), or from where a build tree leaves it. NULL
 * with the reason in why. A module stays loaded: threads and handlers of the libraries that it
 * brings in may outlive its last user.
 */
void *mpix_module_open(const char *given, const char *file, char *why, size_t len);
#endif
