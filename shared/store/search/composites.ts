/** Composite parameters: all values of one element, by the rows that composite-plan.ts derives. */
import type { SearchParameter } from '../../fhir/definitions-data.ts'
import type { Condition } from '../../fhir/search.ts'
import {
  parseDateValue,
  parseNumberValue,
  parseQuantityValue,
  parseReferenceValue,
  parseTokenValue,
  splitComposite,
  unescapeValue,
} from '../../fhir/search-values.ts'
import { normaliseString } from '../../fhir/values-string.ts'
import type { Bind } from '../side-rows.ts'
import { dateSql, numberSql, quantitySql } from './ranges.ts'
import { parameterSql, type Scene, type Test } from './row-test.ts'
import { prefixSql } from './strings.ts'

type Component = NonNullable<SearchParameter['components']>[number]

interface Part {
  readonly kind: Component['type']
  /** In the parameter, as Keys.composite counts it. */
  readonly position: number
  readonly value: string
}

export function compositeTest(
  scene: Scene,
  ps: readonly bigint[],
  parameter: SearchParameter,
  { values }: Condition,
): Test {
  const alternatives = values.map((value) => {
    const texts = splitComposite(parameter, value)
    const parts = (parameter.components ?? []).map(({ type }, position) => ({
      kind: type,
      position,
      value: texts[position] ?? '',
    }))
    const ranged = parts.filter(({ kind }) => !isKey(kind))
    return { keys: ps.flatMap((p) => joinedKeys(scene, p, parts.filter(isKeyed))), ranged }
  })
  if (alternatives.every(({ ranged }) => ranged.length === 0)) {
    return { kind: 'keys', any: alternatives.flatMap(({ keys }) => keys) }
  }
  return {
    kind: 'ids',
    ids: (bind) =>
      alternatives.map(({ keys, ranged }) => rowsSql(scene, keys, ranged, bind)).join(' union '),
  }
}

const isKey = (kind: Component['type']) =>
  kind === 'token' || kind === 'reference' || kind === 'uri'
const isKeyed = ({ kind }: Part) => isKey(kind)

function joinedKeys(scene: Scene, p: bigint, [first, ...others]: readonly Part[]): bigint[] {
  if (first === undefined) return []
  let joined = componentKeys(scene, p, first)
  for (const other of others) {
    const seconds = componentKeys(scene, p, other)
    joined = joined.flatMap((key) =>
      seconds.map((second) => scene.keys.composite(key, other.position, second)),
    )
  }
  return joined
}

function componentKeys({ keys, project }: Scene, p: bigint, { kind, value }: Part): bigint[] {
  if (kind === 'uri') return [keys.uri(p, unescapeValue(value))]
  if (kind === 'token') {
    const { system, code } = parseTokenValue(value)
    return code === undefined ? [] : [keys.token(p, system, code)]
  }
  return parseReferenceValue(undefined, undefined, value).map((reference) =>
    keys.reference(p, keys.target(project, reference)),
  )
}

/** The rows of several ranges belong to one element when they carry one mark in `u`. */
function rowsSql(
  scene: Scene,
  keys: readonly bigint[],
  parts: readonly Part[],
  bind: Bind,
): string {
  const project = bind(scene.project, 'int')
  const isMarked = parts.length > 1
  const joins = parts.map((part, i) => {
    const alias = `g${i}`
    const ps = keys.map((key) => scene.keys.composite(key, part.position))
    const table = part.kind === 'string' ? 'idx_string' : 'idx_range'
    const same = i > 0 ? ` on g0.id = ${alias}.id and g0.u = ${alias}.u` : ''
    const test = `${alias}.project = ${project} and ${parameterSql(alias, ps, bind)}
      and ${partSql(scene, part, alias, isMarked, bind)}`
    return { from: `${table} ${alias}${same}`, test }
  })
  return `select g0.id from ${joins.map(({ from }) => from).join(' join ')}
    where ${joins.map(({ test }) => test).join(' and ')}`
}

function partSql(scene: Scene, part: Part, alias: string, isMarked: boolean, bind: Bind): string {
  const { kind, value } = part
  if (kind === 'string') return prefixSql(alias, normaliseString(unescapeValue(value)), bind)
  if (kind === 'date') {
    const at = (ms: number) => bind(ms, 'float8')
    return dateSql(parseDateValue(value), `${alias}.lo`, `${alias}.hi`, at)
  }
  if (kind === 'number' || isMarked) return numberSql(parseNumberValue(value), alias, bind)
  return quantitySql(scene, parseQuantityValue(value), alias, bind)
}
