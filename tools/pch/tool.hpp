// SPDX-License-Identifier: Apache-2.0
// The two libraries whose headers take most of the tool's compile time; precompiled (meson option b_pch), never
// included by name.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
