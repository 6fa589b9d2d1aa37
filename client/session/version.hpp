// SPDX-License-Identifier: Apache-2.0
// The library's version in one place; meson compares it with the project's at configuration.
#pragma once

#define SHMB_VERSION_TEXT "0.1.0"
