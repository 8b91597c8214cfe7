#pragma once
#include "device/base.cuh"

// Warpgroup products, asynchronous: d (+)= a b for a 64 x 16 tile of A and a 16 x N tile of B that descriptors find in
// shared memory. With `add` 0 d is overwritten. Trans: 0 for an operand whose elements along K are neighbours, 1 for
// one whose elements along M or N are. The first argument is the type of the elements. sm_90a.
// d[i] of a thread: row 16 warp + lane / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (lane % 4) + i % 2.

#define TWINBENCH_R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TWINBENCH_R1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define TWINBENCH_R2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define TWINBENCH_R3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define TWINBENCH_R4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define TWINBENCH_R5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define TWINBENCH_R6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define TWINBENCH_R7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define TWINBENCH_R8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define TWINBENCH_R9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define TWINBENCH_R10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define TWINBENCH_R11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define TWINBENCH_R12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define TWINBENCH_R13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define TWINBENCH_R14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define TWINBENCH_R15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define TWINBENCH_F(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define TWINBENCH_F32(i) TWINBENCH_F(i), TWINBENCH_F(i + 8), TWINBENCH_F(i + 16), TWINBENCH_F(i + 24)

#define TWINBENCH_WGMMA_OF(TYPE, N, REGISTERS, A, B, ADD, TRANS_A, TRANS_B, ...)                                   \
  template <int TransA, int TransB>                                                                                \
  __device__ __forceinline__ void wgmma(TYPE, float (&d)[N / 2], u64 a, u64 b, u32 add) {                          \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, " ADD ", 0;\n"                                               \
                 " wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #TYPE "." #TYPE " {" REGISTERS "}, " A ", " B   \
                 ", p, 1, 1, " TRANS_A ", " TRANS_B ";\n}"                                                         \
                 : __VA_ARGS__                                                                                     \
                 : "l"(a), "l"(b), "r"(add), "n"(TransA), "n"(TransB));                                            \
  }
#define TWINBENCH_WGMMA(...) TWINBENCH_WGMMA_OF(bf16, __VA_ARGS__) TWINBENCH_WGMMA_OF(f16, __VA_ARGS__)

#define TWINBENCH_D32 TWINBENCH_R0 ", " TWINBENCH_R1
TWINBENCH_WGMMA(32, TWINBENCH_D32, "%16", "%17", "%18", "%19", "%20", TWINBENCH_F(0), TWINBENCH_F(8))

#define TWINBENCH_D64 TWINBENCH_R0 ", " TWINBENCH_R1 ", " TWINBENCH_R2 ", " TWINBENCH_R3
TWINBENCH_WGMMA(64, TWINBENCH_D64, "%32", "%33", "%34", "%35", "%36", TWINBENCH_F32(0))

#define TWINBENCH_D80 TWINBENCH_D64 ", " TWINBENCH_R4
TWINBENCH_WGMMA(80, TWINBENCH_D80, "%40", "%41", "%42", "%43", "%44", TWINBENCH_F32(0), TWINBENCH_F(32))

#define TWINBENCH_D96 TWINBENCH_D80 ", " TWINBENCH_R5
TWINBENCH_WGMMA(96, TWINBENCH_D96, "%48", "%49", "%50", "%51", "%52", TWINBENCH_F32(0), TWINBENCH_F(32),
                TWINBENCH_F(40))

#define TWINBENCH_D112 TWINBENCH_D96 ", " TWINBENCH_R6
TWINBENCH_WGMMA(112, TWINBENCH_D112, "%56", "%57", "%58", "%59", "%60", TWINBENCH_F32(0), TWINBENCH_F(32),
                TWINBENCH_F(40), TWINBENCH_F(48))

#define TWINBENCH_D128 TWINBENCH_D112 ", " TWINBENCH_R7
TWINBENCH_WGMMA(128, TWINBENCH_D128, "%64", "%65", "%66", "%67", "%68",
                TWINBENCH_F32(0), TWINBENCH_F32(32))

#define TWINBENCH_D144 TWINBENCH_D128 ", " TWINBENCH_R8
TWINBENCH_WGMMA(144, TWINBENCH_D144, "%72", "%73", "%74", "%75", "%76",
                TWINBENCH_F32(0), TWINBENCH_F32(32), TWINBENCH_F(64))

#define TWINBENCH_D160 TWINBENCH_D144 ", " TWINBENCH_R9
TWINBENCH_WGMMA(160, TWINBENCH_D160, "%80", "%81", "%82", "%83", "%84",
                TWINBENCH_F32(0), TWINBENCH_F32(32), TWINBENCH_F(64), TWINBENCH_F(72))

#define TWINBENCH_D176 TWINBENCH_D160 ", " TWINBENCH_R10
TWINBENCH_WGMMA(176, TWINBENCH_D176, "%88", "%89", "%90", "%91", "%92",
                TWINBENCH_F32(0), TWINBENCH_F32(32), TWINBENCH_F(64), TWINBENCH_F(72), TWINBENCH_F(80))

#define TWINBENCH_D192 TWINBENCH_D176 ", " TWINBENCH_R11
TWINBENCH_WGMMA(192, TWINBENCH_D192, "%96", "%97", "%98", "%99", "%100",
                TWINBENCH_F32(0), TWINBENCH_F32(32), TWINBENCH_F32(64))

#define TWINBENCH_D256 \
  TWINBENCH_D192 ", " TWINBENCH_R12 ", " TWINBENCH_R13 ", " TWINBENCH_R14 ", " TWINBENCH_R15
TWINBENCH_WGMMA(256, TWINBENCH_D256, "%128", "%129", "%130", "%131", "%132",
                TWINBENCH_F32(0), TWINBENCH_F32(32), TWINBENCH_F32(64), TWINBENCH_F32(96))

// Orders earlier accesses to registers and shared memory before the products that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most Groups of the committed groups are under way.
template <int Groups>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Groups) : "memory");
}

// The value is not known before this point, nor changed behind it.
__device__ __forceinline__ void pin(float& value) {
  asm volatile("" : "+f"(value)::"memory");
}
