#pragma once
#include "cluster.h"
template <bool Across>
inline void load_matrices(const void* row, u32 (&pairs)[4]) { load_matrices_of_warp(row, pairs, Across); }
template <bool Across>
inline void store_matrices(void* row, const u32 (&pairs)[4]) { store_matrices_of_warp(row, pairs, Across); }
