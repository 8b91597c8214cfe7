#pragma once
#include "asynchronous.h"
