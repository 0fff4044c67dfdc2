/**
 * Imported concepts, found by the owner's Project and id. The caller's access to the owning CodeSystem or ConceptMap
 * was checked before.
 */
import { HttpError, notSupported, tooCostly } from '../core/errors.ts'
import { typeNumber } from '../fhir/definitions.ts'
import type { Designation, Filter } from '../fhir/terminology.ts'
import { normaliseString } from '../fhir/values.ts'
import { type Bind, binder, type Connection } from '../postgres/statement.ts'
import type { ConceptNode } from './concept-index.ts'
import { type ConceptList, type ConceptQuery, compileRegex, filterWords } from './concepts.ts'

const MOST_TRIED = 50_000

export interface ImportedProperty {
  readonly code: string
  readonly property: string
  readonly value: string
}

/** Returns the number of the imported rows' owner; undefined without imports. */
export async function conceptOwner(
  connection: Connection,
  projectId: string,
  type: 'CodeSystem' | 'ConceptMap',
  id: string,
): Promise<number | undefined> {
  const [row] = await connection.query<{ n: number }>({
    name: 'concept-owner',
    text: 'select n from concept_owner where project = $1 and type = $2 and id = $3',
    values: [projectId, typeNumber(type), id],
  })
  return row?.n
}

/** Returns up to ten texts containing the url, from CodeSystems of all Projects, for a super administrator. */
export async function textsOfUrl(
  connection: Connection,
  type: 'CodeSystem' | 'ConceptMap',
  url: string,
): Promise<readonly string[]> {
  const rows = await connection.query<{ content: string }>({
    text: `select v.content from resource r join version v using (project, type, id, ver)
      where r.project = any(array(select project from tenant)) and r.type = $1
        and position($2 in v.content) > 0 limit 10`,
    values: [typeNumber(type), `"url":${JSON.stringify(url)}`],
  })
  return rows.map(({ content }) => content)
}

interface ConceptRow {
  readonly code: string
  readonly display: string | null
  readonly definition: string | null
}

interface ImportedQuery extends ConceptQuery {
  /** Compares `codes` without the case of ASCII letters. */
  readonly ignoresCase: boolean
}

/** Lists imported concepts like `listConcepts`. Errors: 400 for unsupported or costly filters. */
export async function listImported(
  connection: Connection,
  owner: number,
  query: ImportedQuery,
): Promise<ConceptList> {
  const { filters = [], limit } = query
  const regexes = filters.filter(({ op }) => op === 'regex')
  const tests = regexes.map((filter) => regexTest(filter))
  const { values, bind } = binder()
  const most = regexes.length > 0 ? MOST_TRIED : limit
  const text = `select c.code, c.display, c.definition from concept c
    where ${conditions(owner, query, bind).join(' and ')}
    order by ${orderBy(query.text, bind)} limit ${bind(most + 1, 'int')}`
  const rows = await affordable(connection.query<ConceptRow>({ text, values }))
  if (regexes.length > 0 && rows.length > most) {
    throw tooCostly('The CodeSystem is too large for a regular expression')
  }
  const found = rows.filter((row) => tests.every((test) => test(row)))
  const concepts = await withDetails(connection, owner, found.slice(0, limit))
  return { concepts, isCut: found.length > limit }
}

/** Converts a statement timeout to an error of cost. */
async function affordable<T>(work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (error instanceof HttpError && error.status === 504) {
      throw tooCostly('The CodeSystem is too large for this expansion')
    }
    throw error
  }
}

function conditions(owner: number, query: ImportedQuery, bind: Bind): string[] {
  const { codes, filters = [], text, activeOnly, selectableOnly } = query
  const isFew = codes !== undefined || text !== undefined
  const own = bind(owner, 'int')
  return [
    `c.owner = ${own}`,
    ...(codes === undefined ? [] : [codeSql(codes, query.ignoresCase, bind)]),
    ...(text === undefined ? [] : [textSql(text, bind)]),
    ...filters
      .filter(({ op }) => op !== 'regex')
      .map((filter) => filterSql(filter, own, isFew, bind)),
    ...(activeOnly ? [ACTIVE] : []),
    ...(selectableOnly ? [SELECTABLE] : []),
  ]
}

function codeSql(codes: readonly string[], ignoresCase: boolean, bind: Bind): string {
  if (!ignoresCase) return `c.code = any(${bind(codes, 'text[]')})`
  // The collation of the column is "C", in which lower() changes ASCII letters only.
  const lowered = codes.map((code) => code.replace(/[A-Z]+/g, (letters) => letters.toLowerCase()))
  return `lower(c.code) = any(${bind(lowered, 'text[]')})`
}

// A scalar subquery probes the index for each concept. For a `not exists`, PostgreSQL may compare all concepts with all
// properties until it has analyzed the tables after an import.
const ACTIVE = `(select p.code from concept_property p
  where p.owner = c.owner and p.code = c.code
    and ((p.property = 'inactive' and p.value = 'true')
      or (p.property = 'status' and p.value in ('retired', 'inactive'))) limit 1) is null`

const SELECTABLE = `(select p.code from concept_property p
  where p.owner = c.owner and p.code = c.code
    and p.property in ('notSelectable', 'abstract') and p.value = 'true' limit 1) is null`

function textSql(text: string, bind: Bind): string {
  const words = filterWords(text)
  if (words.length === 0) return 'false'
  // Words are letters and digits only, so the quotes are safe.
  const wanted = words.map((word) => `'${word}':*`).join(' & ')
  return `c.words @@ ${bind(wanted, 'tsquery')}`
}

/** Whole display, its beginning, any word; shorter displays win ties. */
function orderBy(text: string | undefined, bind: Bind): string {
  if (text === undefined) return 'c.seq'
  const wanted = bind(normaliseString(text), 'text')
  return `case when c.v = ${wanted} or lower(c.code) = ${wanted} then 0
    when starts_with(c.v, ${wanted}) then 1 else 2 end, length(c.v), c.seq`
}

/** https://hl7.org/fhir/R4/valueset-filter-operator.html */
function filterSql(
  { property, op, value }: Filter,
  own: string,
  isFew: boolean,
  bind: Bind,
): string {
  switch (op) {
    case '=':
      return hasValue(property, [value], bind)
    case 'in':
      return hasValue(property, splitList(value), bind)
    case 'not-in':
      return `not ${hasValue(property, splitList(value), bind)}`
    case 'is-a':
      return isBelow(value, own, isFew, bind)
    case 'is-not-a':
      return `not ${isBelow(value, own, isFew, bind)}`
    case 'descendent-of':
      return `(${isBelow(value, own, isFew, bind)} and c.code <> ${bind(value, 'text')})`
    case 'generalizes':
      return `c.code in (${upwards(bind(value, 'text'), own)})`
    case 'exists': {
      const has = `exists (select 1 from concept_property p where p.owner = c.owner
        and p.code = c.code and p.property = ${bind(storedName(property), 'text')})`
      return value === 'true' ? has : `not ${has}`
    }
    default:
      throw notSupported(`Unknown filter operator: ${op}`)
  }
}

function splitList(value: string): readonly string[] {
  return value.split(',').map((item) => item.trim())
}

function hasValue(property: string, wanted: readonly string[], bind: Bind): string {
  const list = bind(wanted, 'text[]')
  if (property === 'code' || property === 'concept') return `(c.code = any(${list}))`
  if (property === 'display') return `(coalesce(c.display, '') = any(${list}))`
  if (property === 'child') {
    return `exists (select 1 from concept_property p where p.owner = c.owner
      and p.property = 'parent' and p.value = c.code and p.code = any(${list}))`
  }
  return `exists (select 1 from concept_property p where p.owner = c.owner and p.code = c.code
    and p.property = ${bind(storedName(property), 'text')} and p.value = any(${list}))`
}

/** `subsumedBy` is another name of the relation. */
export function storedName(property: string): string {
  return property === 'subsumedBy' ? 'parent' : property
}

/** Few candidates walk up to the root; many are compared with its descendants. */
function isBelow(root: string, own: string, isFew: boolean, bind: Bind): string {
  const from = bind(root, 'text')
  if (isFew) return `(${from} in (${upwards('c.code', own)}))`
  return `c.code in (with recursive d(code) as (select ${from} collate "C"
    union select p.code from concept_property p join d on p.value = d.code
      where p.owner = ${own} and p.property = 'parent') select code from d)`
}

/** Returns a code and its ancestors; `union` ends cycles. */
function upwards(from: string, own: string): string {
  return `with recursive up(code) as (select ${from} collate "C"
    union select p.value from concept_property p join up on p.code = up.code
      where p.owner = ${own} and p.property = 'parent') select code from up`
}

function regexTest({ property, value }: Filter): (row: ConceptRow) => boolean {
  const matches = compileRegex(value)
  if (property === 'code' || property === 'concept') return ({ code }) => matches(code)
  if (property === 'display') return ({ display }) => display !== null && matches(display)
  throw notSupported(`A regular expression on ${property} of an imported CodeSystem`)
}

async function withDetails(
  connection: Connection,
  owner: number,
  rows: readonly ConceptRow[],
): Promise<readonly ConceptNode[]> {
  if (rows.length === 0) return []
  const codes = rows.map(({ code }) => code)
  const [properties, designations] = await Promise.all([
    readProperties(connection, owner, codes),
    readDesignations(connection, owner, codes),
  ])
  return rows.map(({ code, display, definition }) => {
    const own = properties.get(code) ?? []
    const named = (name: string) =>
      own.filter(({ property }) => property === name).map(({ value }) => value)
    return {
      code,
      display: display ?? undefined,
      definition: definition ?? undefined,
      designations: designations.get(code)?.map(designationFrom) ?? [],
      properties: own
        .filter(({ property }) => property !== 'parent' && property !== 'child')
        .map(({ property, value }) => ({ code: property, valueString: value })),
      parents: named('parent'),
      children: named('child'),
    }
  })
}

type ByCode<Row> = ReadonlyMap<string, readonly Row[]>

async function readProperties(
  connection: Connection,
  owner: number,
  codes: readonly string[],
): Promise<ByCode<ImportedProperty>> {
  // Children are many, and requested for one concept at a time.
  const single = codes.length === 1
  const rows = await connection.query<ImportedProperty>({
    text: `select code, property, value from concept_property where owner = $1 and code = any($2)
      ${
        single
          ? `union all select value, 'child', code from concept_property
        where owner = $1 and property = 'parent' and value = any($2)`
          : ''
      }`,
    values: [owner, codes],
  })
  return Map.groupBy(rows, ({ code }) => code)
}

interface DesignationRow {
  readonly code: string
  readonly language: string
  readonly useSystem: string
  readonly useCode: string
  readonly useDisplay: string
  readonly value: string
}

async function readDesignations(
  connection: Connection,
  owner: number,
  codes: readonly string[],
): Promise<ByCode<DesignationRow>> {
  const rows = await connection.query<DesignationRow>({
    text: `select code, language, use_system as "useSystem", use_code as "useCode",
        use_display as "useDisplay", value
      from concept_designation where owner = $1 and code = any($2) order by seq`,
    values: [owner, codes],
  })
  return Map.groupBy(rows, ({ code }) => code)
}

function designationFrom(row: DesignationRow): Designation {
  const { language, value } = row
  const use = {
    ...(row.useSystem === '' ? {} : { system: row.useSystem }),
    ...(row.useCode === '' ? {} : { code: row.useCode }),
    ...(row.useDisplay === '' ? {} : { display: row.useDisplay }),
  }
  return {
    ...(language === '' ? {} : { language }),
    ...(Object.keys(use).length === 0 ? {} : { use }),
    value,
  }
}
