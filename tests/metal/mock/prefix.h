// Comes before everything else, compiled once: what all files of the mock and of csrc/metal include.
#pragma once
#ifdef __OBJC__
#import <Foundation/Foundation.h>
#undef _ // GNUstep's macro for localised strings; torch's headers use the name
#undef nil
#define nil nullptr // as on Apple's systems, where it fits any pointer
#import <Metal/Metal.h>
#include <objc/runtime.h>
#endif
#include <ATen/ATen.h>
#include <torch/library.h>
