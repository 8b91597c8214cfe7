#pragma once
#include "device/base.cuh"
#include "lanes.h"
inline bool elect() { return current % 32 == 0; }
