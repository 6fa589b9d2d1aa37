// SPDX-License-Identifier: Apache-2.0
// The names of the atomic steps that the models take. Client steps carry the names of client/lane/steps.hpp, and
// steps_test.py compares the two lists; a step that no explored instance takes is a failure of the run (main.cpp).
#pragma once

#include <cstdint>

namespace shmb::model {

// A participant's changes of shared words. One entry of client/lane/steps.hpp each.
// clang-format off
#define SHMB_MODEL_CLIENT_STEPS(X) \
  X(A0) X(A1) X(A2) X(A2l) X(A3) X(P1) X(P2) X(S0) X(S1) X(S2) X(S3) X(S4) X(S5) X(S6) X(S7) X(S8) X(R1) X(R2) \
  X(R3) X(R3u) X(R4) X(L1) X(L2) X(L3) X(L4) X(K1) X(K2) X(K3) X(KR) X(KX) X(C1) X(C2) X(C3) X(C4) \
  X(C5) X(C6) X(C7) X(W1) X(W2) X(W3) X(W4) X(W5) X(Q1) X(Q2) X(Q4) X(Q5) X(J1) X(J2) X(J3) X(J4) \
  X(J5) X(J6) X(J7) X(Z0) X(Z1) X(Z2) X(Z3) X(Z4) X(Z5) X(Z6) X(Z7)
// clang-format on

// The broker's steps.
#define SHMB_MODEL_BROKER_STEPS(X) X(D1) X(D2) X(D3) X(D4) X(D5) X(D6) X(D7)

// Steps of neither list: the application's own (A4 writes the content, drop ends a reference), and the world's:
// join and leave of a participant, a new lane, kill, stop, a store that leaves its buffer.
#define SHMB_MODEL_OTHER_STEPS(X) X(A4) X(drop) X(join) X(leave) X(lane) X(kill) X(stop) X(drain)

enum class Step : std::uint8_t {
#define SHMB_MODEL_NAME(name) name,
  SHMB_MODEL_CLIENT_STEPS(SHMB_MODEL_NAME) SHMB_MODEL_BROKER_STEPS(SHMB_MODEL_NAME)
      SHMB_MODEL_OTHER_STEPS(SHMB_MODEL_NAME)
#undef SHMB_MODEL_NAME
          count
};
inline constexpr const char* kStepNames[] = {
#define SHMB_MODEL_NAME(name) #name,
    SHMB_MODEL_CLIENT_STEPS(SHMB_MODEL_NAME) SHMB_MODEL_BROKER_STEPS(SHMB_MODEL_NAME)
        SHMB_MODEL_OTHER_STEPS(SHMB_MODEL_NAME)
#undef SHMB_MODEL_NAME
};

}  // namespace shmb::model
