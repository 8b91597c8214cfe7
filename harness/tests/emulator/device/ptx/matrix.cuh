#pragma once
#include "warps.h"
