/** The FHIRPath engine, loaded when the first expression needs it: it takes 37 MB and 150 ms. */
import { createRequire } from 'node:module'
import type { Model } from 'fhirpath'

type Fhirpath = typeof import('fhirpath').default

interface Engine {
  readonly fhirpath: Fhirpath
  readonly r4: Model
}

let loaded: Engine | undefined

export function engine(): Engine {
  const require = createRequire(import.meta.url)
  loaded ??= { fhirpath: require('fhirpath'), r4: require('fhirpath/fhir-context/r4') }
  return loaded
}
