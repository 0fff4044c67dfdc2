/** Tests use the service as its clients do, or give the reason. */
import type { Source } from './sources.ts'

/** Tests of functions are in test/unit. */
const OVER_HTTP = /^test\/(?:api|system)\/.*\.test\.ts$/
const PRODUCT = /^(?:import\b.*|\}) from '(?:\.\.\/)+(?:server|shared|worker)\//m
const REASON = /^\/\*\*(?:(?!\*\/)[\s\S])*\bImports\s/

/** Returns a line for each fault: its place and the rule. */
export function findTestFaults(sources: readonly Source[]): readonly string[] {
  return sources
    .filter(({ path, text }) => OVER_HTTP.test(path) && PRODUCT.test(text) && !REASON.test(text))
    .map(({ path }) => `${path}: use HTTP, or begin the file with "Imports …" and the reason`)
}
