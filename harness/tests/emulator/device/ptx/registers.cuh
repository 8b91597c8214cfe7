#pragma once
#include "device/base.cuh"
inline float kept(float value) { return value; }
inline u32 kept(u32 value) { return value; }
template <int Count>
inline void give_back_registers() {}
template <int Count>
inline void take_registers() {}
