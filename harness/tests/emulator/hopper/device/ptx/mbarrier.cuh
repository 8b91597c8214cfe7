#pragma once
#include "cluster.h"
