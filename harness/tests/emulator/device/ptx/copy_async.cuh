#pragma once
#include "copies.h"
