/** Chains, `_has`, includes and compartments on raw JSON, as search.html defines them. */

import { findParameter } from '../../../fixtures/oracle/elements.ts'
import { expectedMatches, extractValues, type Stored } from '../../../fixtures/oracle/oracle.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'

const toReference = (raw: Raw): string | undefined =>
  typeof raw === 'string' ? raw : raw.reference?.split('/_history/')[0]

/** Returns `Type/id` or URLs in a parameter of the resource. */
function extractReferences({ type, json }: Stored, code: string): string[] {
  const parameter = findParameter(type, code)
  if (parameter?.kind !== 'reference') throw new Error(`${type}.${code} is not a reference`)
  return extractValues(parameter, json).flatMap((raw) => toReference(raw) ?? [])
}

const resourceReference = ({ type, id }: Stored) => `${type}/${id}`

/** Returns true if `holder` references `target` by id or url. Includes consider the version of a url. */
function pointsAt(holder: Stored, code: string, target: Stored, heeds = false): boolean {
  const { url, version } = target.json
  return extractReferences(holder, code).some((text) => {
    const [bare, named = version] = text.split('|')
    return text === resourceReference(target) || (bare === url && (!heeds || named === version))
  })
}

/**
 * Evaluates chains (`subject:Patient.name`) and `_has:Observation:patient:code` link by link, other
 * parameters by the oracle of plain searches.
 */
export function joinedMatches(all: readonly Stored[], query: string): Stored[] {
  const [type = '', text = ''] = query.split(/\?(.*)/s)
  const pairs = text.split('&').map((pair) => pair.split(/=(.*)/s).map(decodeURIComponent))
  return pairs.reduce<Stored[]>(
    (left, [name = '', value = '']) => left.filter((one) => holds(all, one, name, value)),
    all.filter((stored) => stored.type === type),
  )
}

function holds(all: readonly Stored[], one: Stored, name: string, value: string): boolean {
  const has = /^_has:(\w+):([\w-]+):(.+)$/.exec(name)
  if (has !== null) {
    const [, type, code = '', rest = ''] = has
    return all.some(
      (other) =>
        other.type === type && pointsAt(other, code, one) && holds(all, other, rest, value),
    )
  }
  const chain = /^([\w-]+)(?::(\w+))?\.(.+)$/.exec(name)
  if (chain !== null) {
    const [, code = '', type, rest = ''] = chain
    return all.some(
      (other) =>
        (type === undefined || other.type === type) &&
        pointsAt(one, code, other) &&
        knows(other, rest) &&
        holds(all, other, rest, value),
    )
  }
  const query = `${one.type}?${encodeURIComponent(name)}=${encodeURIComponent(value)}`
  return expectedMatches([one], query).length === 1
}

/** Returns true if the type has the next parameter; a chain without a type follows only those. */
function knows({ type }: Stored, rest: string): boolean {
  const [code = ''] = rest.split(/[.:]/)
  return code.startsWith('_') || findParameter(type, code) !== undefined
}

/** Returns the resources included by `Type:code` or `Type:code:Target`. */
export function included(all: readonly Stored[], matches: readonly Stored[], include: string) {
  const [type, code = '', target] = include.split(':')
  return all.filter(
    (other) =>
      !matches.includes(other) &&
      (target === undefined || other.type === target) &&
      matches.some((one) => one.type === type && pointsAt(one, code, other, true)),
  )
}

export function reverseIncluded(
  all: readonly Stored[],
  matches: readonly Stored[],
  include: string,
) {
  const [type, code = ''] = include.split(':')
  return all.filter(
    (other) =>
      !matches.includes(other) &&
      other.type === type &&
      matches.some((one) => pointsAt(other, code, one, true)),
  )
}
