# SPDX-License-Identifier: Apache-2.0
install(TARGETS fusionml_static fusionml_shared)
