#pragma once
#include "device/norm_parts.cuh"
#include "device/ptx/cluster.cuh"
#include "device/quantize_mxfp8.cuh"

// A CTA's threads over a slab of 32 * Down rows: Down x 8/Down warps of 32 x 64 elements, each 4 x 8 threads of 8 x 8,
// as in a tile; the same columns further on make the slab `Tiles` as wide.
template <int Down>
struct SlabLattice {
  static constexpr int kRows = 32 * Down, kAcross = kThreads / kWarp / Down, kStep = 64 * kAcross;
  static __device__ __forceinline__ int warp_across() { return threadIdx.x / kWarp % kAcross; }
  static __device__ __forceinline__ int top() {
    return threadIdx.x / kWarp / kAcross * 32 + Lattice::lane_down() * kRun;
  }
  static __device__ __forceinline__ int left() { return warp_across() * 64 + Lattice::lane_across() * kRun; }
};

// Sums along the rows of a slab: of eight lanes, of the warps beside each other, and of the CTAs of a cluster, which
// then share a row. Each CTA sends its sums to the others' shared memory; a place is written again only after its
// owner's next contribution, which the owner sends when it has read the place.
template <int Down, bool Clustered>
struct SlabSums {
  using At = SlabLattice<Down>;
  static constexpr int kCtas = Clustered ? 8 : 1, kPlaces = 2;
  struct Shared {
    float warp[At::kAcross][At::kRows];
    float cta[kPlaces][kCtas][At::kRows];
    u64 arrived[kPlaces];
  };

  Shared& shared;
  u32 count = 0;

  __device__ __forceinline__ explicit SlabSums(Shared& shared) : shared(shared) {
    if constexpr (Clustered) {
      if (threadIdx.x == 0) {
        for (int i = 0; i < kPlaces; ++i) mbarrier_init(&shared.arrived[i], 1);
        fence_mbarrier_init();
      }
      cluster_arrive();
    }
  }
  // Each thread's sums over its own elements of eight rows; in their place the sums over the rows.
  __device__ __forceinline__ void apply(float (&v)[kRun]) {
    const bool high = threadIdx.x & 4, middle = threadIdx.x & 2, low = threadIdx.x & 1;
    float half[4], quarter[2];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      half[i] = (high ? v[i + 4] : v[i]) + __shfl_xor_sync(~0u, high ? v[i] : v[i + 4], 4);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      quarter[i] = (middle ? half[i + 2] : half[i]) + __shfl_xor_sync(~0u, middle ? half[i] : half[i + 2], 2);
    const float one = (low ? quarter[1] : quarter[0]) + __shfl_xor_sync(~0u, low ? quarter[0] : quarter[1], 1);
    if (count) __syncthreads();  // all have read what the last sum left
    shared.warp[At::warp_across()][At::top() + Lattice::lane_across()] = one;
    __syncthreads();
    if constexpr (Clustered) {
      exchange();
      gather(shared.cta[count & 1], cluster_size(), v);
    } else {
      gather(shared.warp, At::kAcross, v);
    }
    ++count;
  }
  // No CTA may leave while another can still write to it.
  __device__ __forceinline__ void close() const {
    if constexpr (Clustered) {
      if (count == 0) cluster_wait();
      cluster_arrive();
      cluster_wait();
    }
  }

 private:
  __device__ __forceinline__ void exchange() {
    if (count == 0) cluster_wait();  // all CTAs are there and ready to be written to
    const u32 size = cluster_size(), row = threadIdx.x % At::kRows, target = threadIdx.x / At::kRows;
    const u32 place = count & 1, phase = count >> 1 & 1;
    u64* const arrived = &shared.arrived[place];
    if (threadIdx.x == 0) mbarrier_arrive_expect_tx(arrived, size * At::kRows * sizeof(float));
    if (target < size) {
      float sum = 0.f;
#pragma unroll
      for (int w = 0; w < At::kAcross; ++w) sum += shared.warp[w][row];
      store_async(map_shared(shared_address(&shared.cta[place][cluster_rank()][row]), target), sum,
                  map_shared(shared_address(arrived), target));
    }
    while (!mbarrier_try_wait_cluster(arrived, phase)) {}
  }
  template <int Most>
  static __device__ __forceinline__ void gather(const float (&parts)[Most][At::kRows], int count, float (&v)[kRun]) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) v[i] = 0.f;
#pragma unroll 2
    for (int p = 0; p < count; ++p)
#pragma unroll
      for (int i = 0; i < kRun; ++i) v[i] += parts[p][At::top() + i];
  }
};

// What becomes of a thread's 8 x 8 elements of y, from `row` and `column` on: `rows` of the eight are there.
// y_of_row(i) is zeros where there is no row.

// FP8 with delayed scaling, of the float32 y. 32 rows of a column are 32 bytes of columnwise data, a whole sector.
template <class Code>
struct SlabFp8 {
  using Shared = BlockMax<1>::Shared;
  const NormQuantize& a;
  DelayedCast cast;

  __device__ __forceinline__ SlabFp8(const NormQuantize& a) : a(a), cast(a) {}
  template <class Y>
  __device__ __forceinline__ void put(i64 row, i64 column, int rows, Y y_of_row) {
    u32 low[kRun], high[kRun];  // of row i: codes of columns 0 … 3 and 4 … 7
    i64 place = row * a.cols + column;
#pragma unroll
    for (int i = 0; i < kRun; ++i, place += a.cols) {
      const Floats<kRun> y = y_of_row(i);
      cast.look(y);
      const u64 codes = fp8_codes<Code>(y, cast.scale);
      low[i] = codes, high[i] = codes >> 32;
      if (i < rows && a.rowwise) *reinterpret_cast<u64*>(a.rowwise + place) = codes;
    }
    if (rows && a.columnwise) {
      put_columns(low, row, column, rows);
      put_columns(high, row, column + 4, rows);
    }
  }
  __device__ __forceinline__ void put_columns(const u32 (&codes)[kRun], i64 row, i64 column, int rows) const {
    u32 upper[4], lower[4];
    transpose_bytes({codes[0], codes[1], codes[2], codes[3]}, upper);
    transpose_bytes({codes[4], codes[5], codes[6], codes[7]}, lower);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      store_run<Ragged>(a.columnwise, (column + j) * a.rows + row, u64(lower[j]) << 32 | upper[j], rows);
  }
  __device__ __forceinline__ void finish(Shared& shared) { cast.finish(a, shared); }
};

// MXFP8, of y rounded to X. 32 rows and 32 columns are in one warp.
template <class Code, class X>
struct SlabMxfp8 {
  using Work = Mxfp8<RowTile<X, Whole>, Code>;
  struct Shared {};
  static constexpr int kBlock = 32;
  const NormQuantize& a;

  __device__ __forceinline__ SlabMxfp8(const NormQuantize& a) : a(a) {}
  template <class Y>
  __device__ __forceinline__ void put(i64 row, i64 column, int rows, Y y_of_row) const {
    const bool here = rows != 0;  // all eight, or none: blocks lie down columns, or there are none
    Vec<X, kRun> y[kRun];
#pragma unroll
    for (int i = 0; i < kRun; ++i) narrow(y_of_row(i), y[i]);
    if (a.rowwise) put_rows(row, column, here, y);
    if (a.columnwise) put_columns(row, column, here, y);
  }
  __device__ __forceinline__ void put_rows(i64 row, i64 column, bool here, const Vec<X, kRun> (&y)[kRun]) const {
    const float2 amax = Peaks<X>::of_rows(y).template scatter<2, 1>();
    const int quarter = threadIdx.x % 4;
    const u32 low = Work::scale_of(amax.x), high = Work::scale_of(amax.y);
    const u32 right = __shfl_down_sync(~0u, low | high << 8, 4);  // the block beside, of the same rows
    if (here && threadIdx.x % 8 < 4) {
      const i64 pitch = round_up(a.cols / kBlock, 4), pair = (row + 2 * quarter) * pitch + column / kBlock;
      *reinterpret_cast<unsigned short*>(a.rowwise_scales + pair) = low | right << 8;
      *reinterpret_cast<unsigned short*>(a.rowwise_scales + pair + pitch) = high | (right & 0xFF00);
    }
    float factor[kRun];
    Work::gather(low, high, threadIdx.x % kWarp - quarter, 1, factor);
    i64 place = row * a.cols + column;
#pragma unroll
    for (int i = 0; i < kRun; ++i, place += a.cols)
      if (here) *reinterpret_cast<u64*>(a.rowwise + place) = fp8_codes<Code>(widen(y[i]), factor[i]);
  }
  __device__ __forceinline__ void put_columns(i64 row, i64 column, bool here, const Vec<X, kRun> (&y)[kRun]) const {
    const float2 amax = Peaks<X>::of_columns(y).template scatter<16, 8>();
    const u32 low = Work::scale_of(amax.x), high = Work::scale_of(amax.y);
    const i64 pitch = round_up(a.cols, kEdge), pair = row / kBlock * pitch + column + 2 * Lattice::lane_down();
    if (row < a.rows && column < pitch)
      *reinterpret_cast<unsigned short*>(a.columnwise_scales + pair) = low | high << 8;
    float factor[kRun];
    Work::gather(low, high, Lattice::lane_across(), 8, factor);
    i64 place = row * a.cols + column;
#pragma unroll
    for (int i = 0; i < kRun; ++i, place += a.cols)
      if (here) *reinterpret_cast<u64*>(a.columnwise + place) = fp8_codes<Code>(widen(y[i]), factor);
  }
  __device__ __forceinline__ void finish(Shared&) const {
    if (a.rowwise) pad_scales(a.rowwise_scales, a.rows, a.cols / kBlock);
    if (a.columnwise) {
      const i64 lines = a.rows / kBlock, pitch = round_up(a.cols, kEdge), bytes = (round_up(lines, 4) - lines) * pitch;
      for (i64 i = i64(blockIdx.x) * kThreads + threadIdx.x; i < bytes; i += i64(gridDim.x) * kThreads)
        a.columnwise_scales[lines * pitch + i] = 0;
    }
  }
};
