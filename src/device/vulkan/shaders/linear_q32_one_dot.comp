// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#define DOT
#include "linear_q32_one.glsl"
