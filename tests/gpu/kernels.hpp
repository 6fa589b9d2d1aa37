// SPDX-License-Identifier: Apache-2.0
// Kernels as PTX text, so that building needs no CUDA compiler; the driver compiles them at load (any GPU since Volta).
#pragma once

namespace shmb::facts {

// fill, check, watch, gaps, spin, poke, tally: meaning in gpu.hpp. Grid-stride loops over 8-byte words. In gaps each
// address depends on the word before, which `zero` makes nothing of: so a time that is read belongs to a load that is
// over.
inline constexpr char kKernels[] = R"ptx(
.version 7.0
.target sm_70
.address_size 64

.visible .entry fill(.param .u64 p, .param .u64 n, .param .u64 seed)
{
  .reg .pred %q; .reg .b32 %r<4>; .reg .b64 %d<10>;
  ld.param.u64 %d0, [p]; ld.param.u64 %d1, [n]; ld.param.u64 %d2, [seed];
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mov.u32 %r3, %nctaid.x;
  cvt.u64.u32 %d4, %r2; mad.wide.u32 %d3, %r0, %r1, %d4; mul.wide.u32 %d5, %r3, %r1;
FILL_LOOP:
  setp.ge.u64 %q, %d3, %d1;
  @%q bra FILL_DONE;
  mul.lo.u64 %d6, %d3, 0x9E3779B97F4A7C15U;
  xor.b64 %d6, %d6, %d2;
  shl.b64 %d7, %d3, 3;
  add.u64 %d7, %d0, %d7;
  st.global.u64 [%d7], %d6;
  add.u64 %d3, %d3, %d5;
  bra FILL_LOOP;
FILL_DONE:
  ret;
}

.visible .entry check(.param .u64 p, .param .u64 n, .param .u64 seed, .param .u64 out)
{
  .reg .pred %q; .reg .b32 %r<4>; .reg .b64 %d<12>;
  ld.param.u64 %d0, [p]; ld.param.u64 %d1, [n]; ld.param.u64 %d2, [seed]; ld.param.u64 %d8, [out];
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mov.u32 %r3, %nctaid.x;
  cvt.u64.u32 %d4, %r2; mad.wide.u32 %d3, %r0, %r1, %d4; mul.wide.u32 %d5, %r3, %r1;
  mov.u64 %d10, 0;
CHECK_LOOP:
  setp.ge.u64 %q, %d3, %d1;
  @%q bra CHECK_DONE;
  mul.lo.u64 %d6, %d3, 0x9E3779B97F4A7C15U;
  xor.b64 %d6, %d6, %d2;
  shl.b64 %d7, %d3, 3;
  add.u64 %d7, %d0, %d7;
  ld.volatile.global.u64 %d9, [%d7];
  setp.ne.u64 %q, %d9, %d6;
  @%q add.u64 %d10, %d10, 1;
  add.u64 %d3, %d3, %d5;
  bra CHECK_LOOP;
CHECK_DONE:
  setp.eq.u64 %q, %d10, 0;
  @%q bra CHECK_END;
  red.global.add.u64 [%d8], %d10;
CHECK_END:
  ret;
}

.visible .entry watch(.param .u64 p, .param .u64 n, .param .u64 seed, .param .u64 out, .param .u64 ns)
{
  .reg .pred %q; .reg .b32 %r<4>; .reg .b64 %d<16>;
  ld.param.u64 %d0, [p]; ld.param.u64 %d1, [n]; ld.param.u64 %d2, [seed]; ld.param.u64 %d8, [out];
  ld.param.u64 %d11, [ns];
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mov.u32 %r3, %nctaid.x;
  cvt.u64.u32 %d4, %r2; mad.wide.u32 %d12, %r0, %r1, %d4; mul.wide.u32 %d5, %r3, %r1;
  mov.u64 %d10, 0; mov.u64 %d13, 0;
  mov.u64 %d14, %globaltimer; add.u64 %d11, %d14, %d11;
WATCH_ROUND:
  mov.u64 %d3, %d12;
WATCH_LOOP:
  setp.ge.u64 %q, %d3, %d1;
  @%q bra WATCH_TIME;
  mul.lo.u64 %d6, %d3, 0x9E3779B97F4A7C15U;
  xor.b64 %d6, %d6, %d2;
  shl.b64 %d7, %d3, 3;
  add.u64 %d7, %d0, %d7;
  ld.volatile.global.u64 %d9, [%d7];
  setp.ne.u64 %q, %d9, %d6;
  @%q add.u64 %d10, %d10, 1;
  add.u64 %d3, %d3, %d5;
  bra WATCH_LOOP;
WATCH_TIME:
  add.u64 %d13, %d13, 1;
  mov.u64 %d14, %globaltimer;
  setp.lt.u64 %q, %d14, %d11;
  @%q bra WATCH_ROUND;
  red.global.add.u64 [%d8], %d10;
  setp.ne.u64 %q, %d12, 0;
  @%q bra WATCH_END;
  red.global.add.u64 [%d8+8], %d13;
WATCH_END:
  ret;
}

.visible .entry gaps(.param .u64 p, .param .u64 n, .param .u64 ns, .param .u64 zero, .param .u64 out)
{
  .reg .pred %q; .reg .b64 %d<14>;
  ld.param.u64 %d0, [p]; ld.param.u64 %d1, [n]; ld.param.u64 %d2, [ns]; ld.param.u64 %d12, [zero]; ld.param.u64 %d3, [out];
  mov.u64 %d4, 0; mov.u64 %d5, 0; mov.u64 %d6, 0;
  mov.u64 %d7, %globaltimer; add.u64 %d2, %d7, %d2;
GAPS_LOOP:
  shl.b64 %d8, %d4, 3;
  add.u64 %d8, %d0, %d8;
  ld.volatile.global.u64 %d9, [%d8];
  and.b64 %d9, %d9, %d12;
  add.u64 %d4, %d4, %d9;
  add.u64 %d4, %d4, 8192;
  setp.ge.u64 %q, %d4, %d1;
  @%q mov.u64 %d4, 0;
  mov.u64 %d10, %globaltimer;
  sub.u64 %d11, %d10, %d7;
  mov.u64 %d7, %d10;
  max.u64 %d5, %d5, %d11;
  add.u64 %d6, %d6, 1;
  setp.lt.u64 %q, %d10, %d2;
  @%q bra GAPS_LOOP;
  st.global.u64 [%d3], %d5;
  st.global.u64 [%d3+8], %d6;
  ret;
}

.visible .entry spin(.param .u64 ns)
{
  .reg .pred %q; .reg .b64 %d<4>;
  ld.param.u64 %d0, [ns];
  mov.u64 %d1, %globaltimer; add.u64 %d0, %d1, %d0;
SPIN_LOOP:
  mov.u64 %d1, %globaltimer;
  setp.lt.u64 %q, %d1, %d0;
  @%q bra SPIN_LOOP;
  ret;
}

.visible .entry poke(.param .u64 p, .param .u64 value)
{
  .reg .b64 %d<2>;
  ld.param.u64 %d0, [p]; ld.param.u64 %d1, [value];
  st.volatile.global.u64 [%d0], %d1;
  ret;
}

.visible .entry tally(.param .u64 p, .param .u64 n, .param .u64 value, .param .u64 out)
{
  .reg .pred %q; .reg .b32 %r<4>; .reg .b64 %d<12>;
  ld.param.u64 %d0, [p]; ld.param.u64 %d1, [n]; ld.param.u64 %d2, [value]; ld.param.u64 %d8, [out];
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mov.u32 %r3, %nctaid.x;
  cvt.u64.u32 %d4, %r2; mad.wide.u32 %d3, %r0, %r1, %d4; mul.wide.u32 %d5, %r3, %r1;
  mov.u64 %d10, 0; mov.u64 %d11, 0;
TALLY_LOOP:
  setp.ge.u64 %q, %d3, %d1;
  @%q bra TALLY_DONE;
  shl.b64 %d7, %d3, 3;
  add.u64 %d7, %d0, %d7;
  ld.volatile.global.u64 %d9, [%d7];
  setp.eq.u64 %q, %d9, %d2;
  @%q add.u64 %d10, %d10, 1;
  setp.ne.u64 %q, %d9, 0;
  @%q add.u64 %d11, %d11, 1;
  add.u64 %d3, %d3, %d5;
  bra TALLY_LOOP;
TALLY_DONE:
  red.global.add.u64 [%d8], %d10;
  red.global.add.u64 [%d8+8], %d11;
  ret;
}
)ptx";

}  // namespace shmb::facts
