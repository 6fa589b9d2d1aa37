// SPDX-License-Identifier: Apache-2.0
// The kill points. Every atomic step of the algorithm of pools and lanes has a name here. The code says the name before
// and after the step, so that a test can kill the process between any two steps. Outside of the test build SHMB_STEP
// does nothing. docs/memory-order.md and the model in tests/model use the same names.
#pragma once

#ifdef SHMB_TEST_SEAM
#include <atomic>
#endif

namespace shmb::client {

// A: own a slot (A0: how often one of its group was freed). P: drop it (P2: count that). S, K, W: send on an spsc,
// mpmc, broadcast lane. R, C, Q: receive. J: join a broadcast. L: the ends of a lane. Z: sleep. _half: in the middle
// of something that is not atomic. A2l: the locked look of drop-oldest (A2' of the model). R3 also stands for Q3, and
// for the bit that C5 sets. R3u: that bit is taken back. KR: a done cell's references are dropped. KX: an expired cell
// is taken back. C7: a claim is given back. L4: a broadcast reader detaches. Z0, Z7: this process' bit in a mask is
// set, cleared.
// clang-format off
#define SHMB_STEPS(X) \
  X(A0) X(A1) X(A2) X(A2l) X(A3) X(P1) X(P2) \
  X(S0) X(S0_half) X(S1) X(S1_half) X(S2) X(S3) X(S4) X(S5) X(S6) X(S7) X(S8) \
  X(R1) X(R2) X(R3) X(R3u) X(R4) \
  X(L1) X(L2) X(L3) X(L3_half) X(L4) \
  X(K1) X(K2) X(K2_half) X(K3) X(KR) X(KX) \
  X(C1) X(C2) X(C3) X(C4) X(C5) X(C6) X(C7) \
  X(W1) X(W1_half) X(W2) X(W3) X(W3_half) X(W4) X(W5) \
  X(Q1) X(Q2) X(Q4) X(Q5) \
  X(J1) X(J2) X(J3) X(J4) X(J5) X(J6) X(J7) \
  X(Z0) X(Z1) X(Z2) X(Z3) X(Z4) X(Z5) X(Z6) X(Z7)
// clang-format on

enum class Step : unsigned {
#define X(name) name, name##_done,
  SHMB_STEPS(X)
#undef X
};

#ifdef SHMB_TEST_SEAM
inline std::atomic<void (*)(Step)> step_hook{nullptr};
inline void at_step(Step step) {
  if (auto* hook = step_hook.load(std::memory_order_relaxed)) hook(step);
}
#define SHMB_STEP(name) ::shmb::client::at_step(::shmb::client::Step::name)
#else
#define SHMB_STEP(name) static_cast<void>(0)
#endif

}  // namespace shmb::client
