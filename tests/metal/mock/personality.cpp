// clang gives Objective-C++ files with a `catch (...)` the personality of gcc's Objective-C runtime, which lets C++
// exceptions pass. On a Mac both kinds are caught. Here only C++ throws, so its personality takes the place.
#include <unwind.h>

extern "C" {

_Unwind_Reason_Code __gxx_personality_v0(int, _Unwind_Action, _Unwind_Exception_Class, struct _Unwind_Exception*,
                                         struct _Unwind_Context*);

__attribute__((visibility("hidden"))) _Unwind_Reason_Code __gnu_objc_personality_v0(int version, _Unwind_Action actions,
                                                                                    _Unwind_Exception_Class type,
                                                                                    struct _Unwind_Exception* exception,
                                                                                    struct _Unwind_Context* context) {
  return __gxx_personality_v0(version, actions, type, exception, context);
}

} // extern "C"
