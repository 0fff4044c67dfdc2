/**
 * Synthea's patients again and again: each copy has ids, names, identifiers and dates of its own, codes
 * and values stay. So what belongs to one patient stays as rare as it was, and what all share grows.
 */
import { randomUUIDv7 } from 'node:crypto'
import type { Principal } from '../../shared/access/principal.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Repository } from '../../shared/store/repository.ts'
import { syntheaResources } from './samples.ts'

const AT_ONCE = 128
const DAY_MS = 86_400_000
const SYLLABLES = ['al', 'ber', 'cor', 'dan', 'el', 'fer', 'gil', 'har', 'il', 'jan', 'kor', 'lin']

/** The values that the queries of a bench ask for, taken from what was loaded. */
export interface Loaded {
  readonly count: number
  /** A sample of every type, spread over all copies. */
  readonly samples: ReadonlyMap<string, readonly Resource[]>
}

export async function loadCopies(
  repository: Repository,
  principal: Principal,
  resources: number,
): Promise<Loaded> {
  const originals = (await syntheaResources()).map((resource) => JSON.stringify(resource))
  const samples = new Map<string, Resource[]>()
  let count = 0
  for (let copy = 0; count < resources; copy++) {
    const copies = copyOf(originals, copy).slice(0, resources - count)
    for (let start = 0; start < copies.length; start += AT_ONCE) {
      const group = copies.slice(start, start + AT_ONCE)
      await Promise.all(
        group.map((resource) => repository.create(principal, resource, { keepId: true })),
      )
    }
    count += copies.length
    for (const resource of copies) {
      const list = samples.get(resource.resourceType) ?? []
      // A few of each copy keep the sample small and spread.
      if (list.length < (copy + 1) * 4) list.push(resource)
      samples.set(resource.resourceType, list)
    }
  }
  return { count, samples }
}

function copyOf(originals: readonly string[], copy: number): Resource[] {
  const ids = new Map<string, string>()
  const days = (copy * 37) % 3650
  const shifted = new Map<string, string>()
  return originals.map((text, place) => {
    const own = text
      .replace(UUID, (id) => entry(ids, id, randomUUIDv7))
      .replace(DATE, (date) => entry(shifted, date, () => shift(date, days)))
    const resource: Resource = JSON.parse(own)
    if (resource.resourceType === 'Patient') return { ...resource, name: [nameOf(copy, place)] }
    if (resource.resourceType === 'Organization') {
      return { ...resource, name: `${syllables(copy + place)} hospital ${copy}` }
    }
    return resource
  })
}

const UUID = /[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/g
const DATE = /(?<=")(?:19|20)\d\d-\d\d-\d\d/g

function shift(date: string, days: number): string {
  return new Date(Date.parse(date) - days * DAY_MS).toISOString().slice(0, 10)
}

function nameOf(copy: number, place: number): object {
  return { family: syllables(copy * 7 + place), given: [syllables(copy), `g${copy}`] }
}

function syllables(number: number): string {
  const letters = (number + 144).toString(12)
  const all = [...letters].map((digit) => SYLLABLES[Number.parseInt(digit, 12)])
  return all.join('').replace(/^./, (first) => first.toUpperCase())
}

function entry(map: Map<string, string>, key: string, make: () => string): string {
  const known = map.get(key) ?? make()
  map.set(key, known)
  return known
}
