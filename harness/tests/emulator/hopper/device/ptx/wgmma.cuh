#pragma once
#include "products.h"
