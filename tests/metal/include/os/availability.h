// Marks of availability, for systems that have none. On a Mac, and in `make check-macos`, the system's own is found.
#pragma once
#define API_AVAILABLE(...)
#define API_UNAVAILABLE(...)
#define API_DEPRECATED(...)
#define API_DEPRECATED_WITH_REPLACEMENT(...)
