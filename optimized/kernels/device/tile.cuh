#pragma once
#include "device/quantize.cuh"

constexpr int kEdge = 128;  // rows and columns of a CTA: what the padding of scales is a multiple of

// The threads of a CTA over a tile: Down x Across warps of 32 x 64 elements, as 4 x 8 threads of 8 x 8. So the 32 rows
// of a block meet in 4 lanes, and its 32 columns too.
template <int Down, int Across>
struct LatticeOf {
  static __device__ __forceinline__ int lane_across() { return threadIdx.x % 8; }
  static __device__ __forceinline__ int lane_down() { return threadIdx.x / 8 % 4; }
  static __device__ __forceinline__ int warp_across() { return threadIdx.x / kWarp % Across; }
  static __device__ __forceinline__ int warp_down() { return Down == 1 ? 0 : threadIdx.x / kWarp / Across; }
  // This thread's first row and column within the tile.
  static __device__ __forceinline__ int top() { return warp_down() * 32 + lane_down() * kRun; }
  static __device__ __forceinline__ int left() { return warp_across() * 64 + lane_across() * kRun; }
};

using Lattice = LatticeOf<4, 2>;

// 128 x 128 elements in registers, or as many as `At` lays the threads over.
template <class X, class Fill, class At = Lattice>
struct Tile : At {
  using At::left, At::top;
  using type = X;
  using fill = Fill;
  static constexpr bool kTile = true, kColumns = true, kMeets = true;

  Vec<X, kRun> row[kRun];
  i64 first_row = 0, first_col = 0;  // of the CTA
  int columns = 0, rows = 0;  // of this thread's eight, how many there are; no rows where there are no columns

  static __device__ __forceinline__ i64 across(const Quantize& a) { return (a.cols + kEdge - 1) / kEdge; }
  static __device__ __forceinline__ i64 count(const Quantize& a) {
    return (a.rows + kEdge - 1) / kEdge * across(a);
  }

  __device__ __forceinline__ void load(const Quantize& a, i64 part) {
    const u32 wide = across(a);
    first_row = u32(part) / wide * kEdge, first_col = u32(part) % wide * kEdge;
    columns = min(i64(kRun), max(i64(0), a.cols - first_col - left()));
    rows = columns ? min(i64(kRun), max(i64(0), a.rows - first_row - top())) : 0;
    const X* source = static_cast<const X*>(a.x) + (first_row + top()) * a.pitch + first_col + left();
#pragma unroll
    for (int i = 0; i < kRun; ++i, source += a.pitch) row[i] = load_run<X, Fill>(source, 0, in_row(i), a.aligned);
  }
  // How many elements row i has.
  __device__ __forceinline__ int in_row(int i) const { return i < rows ? (Fill::kWhole ? kRun : columns) : 0; }
  // Where the run of this thread's first row lies in data of the layout of the tensor.
  __device__ __forceinline__ i64 place(const Quantize& a) const {
    return (first_row + top()) * a.cols + first_col + left();
  }
  __device__ __forceinline__ void add_to(Peaks<X>& peaks) const {
#pragma unroll
    for (int i = 0; i < kRun; ++i) peaks.take(row[i]);
  }
  __device__ __forceinline__ Floats<kRun> values(int i) const { return widen(row[i]); }
};

// The same where no columnwise data is asked for.
template <class X, class Fill>
struct RowTile : Tile<X, Fill> {
  static constexpr bool kColumns = false;
};

// 16 bytes of a line of `pitch`, of which `bytes` exist.
__device__ __forceinline__ void put_chunk(u8* target, const uint4& source, int bytes, i64 pitch) {
  if (bytes == 16 && pitch % 16 == 0) {
    *reinterpret_cast<uint4*>(target) = source;
  } else if (pitch % 8 == 0) {
    if (bytes >= 8) *reinterpret_cast<uint2*>(target) = {source.x, source.y};
    if (bytes == 16) *reinterpret_cast<uint2*>(target + 8) = {source.z, source.w};
  } else {
    for (int i = 0; i < bytes; ++i) target[i] = reinterpret_cast<const u8*>(&source)[i];
  }
}

// The transpose of a tile in shared memory: `Bytes` for each of 128 columns, in chunks of 16. The 8 neighbouring
// columns of a thread are 8 lines apart and chunks change places with the line, so that neither the threads that
// write a word nor those that read a chunk meet in a bank.
template <int Bytes>
struct Turned {
  static constexpr int kChunks = Bytes / 16;
  uint4 chunk[kEdge * kChunks];

  static __device__ __forceinline__ int line_of(int column) {
    return column & 64 | (column & 7) << 3 | column >> 3 & 7;
  }
  static __device__ __forceinline__ int column_of(int line) { return line_of(line); }
  __device__ __forceinline__ uint4& at(int line, int c) {
    return chunk[line * kChunks + (c ^ line / (8 / kChunks) % kChunks)];
  }
  // Where a byte of column `left` lies, a multiple of 8: that of column left + j, j < 8, lies j * kStep bytes on.
  static constexpr int kStep = 8 * kChunks * 16;
  __device__ __forceinline__ char* find(int left, int byte) {
    return reinterpret_cast<char*>(&at(line_of(left), byte / 16)) + byte % 16;
  }
  // To `out`, a line of `pitch` bytes for each column: those from `first_byte` of the lines from `first_column` on.
  __device__ __forceinline__ void flush(u8* out, i64 first_column, i64 columns, i64 first_byte, i64 pitch) {
    for (int k = threadIdx.x; k < kEdge * kChunks; k += kThreads) {
      const int line = k / kChunks, c = k % kChunks;
      const i64 column = first_column + column_of(line), byte = first_byte + 16 * c;
      const int bytes = column < columns ? int(min(i64(16), pitch - byte)) : 0;
      put_chunk(out + column * pitch + byte, at(line, c), bytes, pitch);
    }
  }
  // From such an array, before a barrier. All of a whole tile is on its way before any of it is put down.
  __device__ __forceinline__ void fill(const u8* in, i64 first_column, i64 columns, i64 first_byte, i64 pitch) {
    constexpr int kEach = kEdge * kChunks / kThreads;
    if (first_column + kEdge <= columns && first_byte + Bytes <= pitch && pitch % 16 == 0) {
      const int line = threadIdx.x / kChunks, c = threadIdx.x % kChunks;
      uint4 fetched[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const i64 column = first_column + column_of(line + i * (kThreads / kChunks));
        fetched[i] = *reinterpret_cast<const uint4*>(in + column * pitch + first_byte + 16 * c);
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) at(line + i * (kThreads / kChunks), c) = fetched[i];
      return;
    }
    for (int k = threadIdx.x; k < kEdge * kChunks; k += kThreads) {
      const int line = k / kChunks, c = k % kChunks;
      const i64 column = first_column + column_of(line), byte = first_byte + 16 * c;
      const int bytes = column < columns ? int(min(i64(16), pitch - byte)) : 0;
      const u8* const source = in + column * pitch + byte;
      uint4& target = at(line, c);
      if (bytes == 16 && pitch % 16 == 0) target = *reinterpret_cast<const uint4*>(source);
      else for (int i = 0; i < bytes; ++i) reinterpret_cast<u8*>(&target)[i] = source[i];
    }
  }
};

// Scales of a tile, `Blocks` (4 or 8) for each of 128 lines; those that do not exist are zeros.
template <int Blocks>
struct TileScales {
  static constexpr int kWords = Blocks / 4;
  u32 word[kEdge][kWords];

  // That of the next line lies `Blocks` bytes on.
  __device__ __forceinline__ u8* find(int line, int block) { return reinterpret_cast<u8*>(word[line]) + block; }
  // To the padded array `out`, which has room for whole tiles of lines, and for whole words of `blocks` scales.
  __device__ __forceinline__ void flush(u8* out, i64 first_line, i64 first_block, i64 blocks) {
    const i64 pitch = round_up(blocks, 4);
    const int line = threadIdx.x % kEdge, w = threadIdx.x / kEdge;
    if (w < kWords && first_block + 4 * w < pitch)
      *reinterpret_cast<u32*>(out + (first_line + line) * pitch + first_block + 4 * w) = word[line][w];
  }
  // A thread's word of such an array, and its place here.
  static __device__ __forceinline__ u32 fetch(const u8* in, i64 first_line, i64 first_block, i64 blocks) {
    static_assert(kEdge * kWords == kThreads, "a word for each thread");
    const i64 pitch = round_up(blocks, 4), line = first_line + threadIdx.x / kWords;
    const i64 block = first_block + 4 * (threadIdx.x % kWords);
    return block < pitch ? *reinterpret_cast<const u32*>(in + line * pitch + block) : 0;
  }
  __device__ __forceinline__ void keep(u32 fetched) { word[threadIdx.x / kWords][threadIdx.x % kWords] = fetched; }
};

// Four words of four bytes as the matrix that they are, transposed.
__device__ __forceinline__ void transpose_bytes(const u32 (&in)[4], u32 (&out)[4]) {
  const u32 a = __byte_perm(in[0], in[1], 0x5140), b = __byte_perm(in[2], in[3], 0x5140);
  const u32 c = __byte_perm(in[0], in[1], 0x7362), d = __byte_perm(in[2], in[3], 0x7362);
  out[0] = __byte_perm(a, b, 0x5410), out[1] = __byte_perm(a, b, 0x7632);
  out[2] = __byte_perm(c, d, 0x5410), out[3] = __byte_perm(c, d, 0x7632);
}

// Eight rows' bytes in four columns, row[i] those of row i: the eight of column j to `to` + j * step.
__device__ __forceinline__ void put_transposed(char* to, int step, const u32 (&row)[kRun]) {
  u32 upper[4], lower[4];
  transpose_bytes({row[0], row[1], row[2], row[3]}, upper);
  transpose_bytes({row[4], row[5], row[6], row[7]}, lower);
#pragma unroll
  for (int j = 0; j < 4; ++j) *reinterpret_cast<u64*>(to + j * step) = u64(lower[j]) << 32 | upper[j];
}
