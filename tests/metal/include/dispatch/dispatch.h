#pragma once
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef struct dispatch_queue_s* dispatch_queue_t;
typedef struct dispatch_queue_attr_s* dispatch_queue_attr_t;
typedef struct dispatch_data_s* dispatch_data_t;
typedef void (^dispatch_block_t)(void);
#define DISPATCH_QUEUE_SERIAL ((dispatch_queue_attr_t)0)
#define DISPATCH_DATA_DESTRUCTOR_DEFAULT ((dispatch_block_t)0)
dispatch_queue_t dispatch_queue_create(const char*, dispatch_queue_attr_t);
dispatch_queue_t dispatch_get_main_queue(void);
void dispatch_sync(dispatch_queue_t, dispatch_block_t);
dispatch_data_t dispatch_data_create(const void*, size_t, dispatch_queue_t, dispatch_block_t);
void dispatch_release(void*);
#ifdef __cplusplus
}
#endif
