// SPDX-License-Identifier: Apache-2.0
// A case that this machine cannot run is skipped aloud: one line "SKIPPED: <case>: <reason>", which tools/test counts.
// A case that silently passes without having looked is a defect.
#pragma once

#include <string>

namespace harness {

void skip(const std::string& reason);

}  // namespace harness

#define SKIP_CASE(reason)    \
  do {                       \
    ::harness::skip(reason); \
    return;                  \
  } while (false)
