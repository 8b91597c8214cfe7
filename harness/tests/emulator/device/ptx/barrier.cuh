#pragma once
#include "device/base.cuh"
#include "lanes.h"
inline Barrier named_barriers[16];
inline void bar_sync(int id, int threads) { named_barriers[id].wait(threads); }
