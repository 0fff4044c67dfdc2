/** Units of measure by the Unified Code: https://ucum.org/ucum */
import { createRequire } from 'node:module'
import { LRUCache } from 'lru-cache'

/** The system of UCUM codes in FHIR. */
export const UCUM = 'http://unitsofmeasure.org'

interface Ucum {
  convertUnitTo(from: string, value: number, to: string): { readonly toVal: number | null }
}

/** Rounding removes the error of a conversion, so that 100 cm is not more than 1 m. */
const DIGITS = 12

/** Undefined when one of the units is unknown or they do not measure the same. */
export function convert(value: number, from: string, to: string): number | undefined {
  const pair = `${from} ${to}`
  if (apart.has(pair)) return undefined
  const { toVal } = ucum().convertUnitTo(from, value, to)
  if (toVal === null) apart.set(pair, true)
  return toVal === null ? undefined : Number(toVal.toPrecision(DIGITS))
}

/** Units that do not measure the same: a search with a unit asks that of all units of the data, several times. */
const apart = new LRUCache<string, true>({ max: 10_000 })

let loaded: Ucum | undefined

/** Loaded at the first conversion: its tables cost 90 ms. */
function ucum(): Ucum {
  // The package has no types; this is the one function that is used.
  loaded ??= createRequire(import.meta.url)('@lhncbc/ucum-lhc').UcumLhcUtils.getInstance() as Ucum
  return loaded
}
