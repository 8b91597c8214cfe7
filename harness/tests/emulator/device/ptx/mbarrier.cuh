#pragma once
#include "device/base.cuh"
