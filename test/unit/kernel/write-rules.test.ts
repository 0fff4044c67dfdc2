/**
 * Features register special cases of resource types as rules (`WriteRule`, `WritePart`), so the
 * general store code names no type.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { GUARDS } from '../../../shared/access/guarded/elements.ts'
import { NAMED_WRITE_TYPES, REGISTRY_TYPES } from '../../../shared/access/policy.ts'
import { writeFeatures } from '../../../shared/api/write-features.ts'
import { isPlatformType, isResourceType, resourceTypes } from '../../../shared/fhir/definitions.ts'

const STORE = join(import.meta.dirname, '../../../shared/store')
const GENERAL = ['.', 'write', 'read', 'rows', '../access/decisions']

/** Files about a concept of some types, which the general code calls. */
const OF_SOME_TYPES: ReadonlyMap<string, string> = new Map([
  [
    '../access/decisions/grant-predicates.ts',
    'Binaries, which no search finds; the User that a membership leads to',
  ],
  ['binaries.ts', 'the security context of Binaries'],
  ['read/read.ts', 'the patients that a resource is about'],
  ['rows/context.ts', 'the registry, where a User reads itself'],
  ['rows/custom-parameters.ts', 'the SearchParameters of a Project'],
  ['rows/event-rows.ts', 'types without change events'],
  ['rows/side-rows.ts', 'the patients that hold accounts; types without searchable content'],
  ['write/authorize.ts', 'the patients that hold accounts'],
  ['write/deletions.ts', 'the profiles of memberships'],
  ['write/project-parts.ts', 'the resources that a whole Project depends on'],
  ['write/reported-changes.ts', 'Logins, of which no cache knows a new one'],
  ['write/stored-contents.ts', 'the content of Binaries'],
])
/** Each row belongs to a Project, whose row id the store looks up. */
const TENANT = 'Project'

t.test('the general code of the store names no type', (t) => {
  const files = GENERAL.flatMap((folder) =>
    readdirSync(join(STORE, folder))
      .filter((name) => name.endsWith('.ts'))
      .map((name) => join(folder, name)),
  )
  t.ok(files.length > 30)
  const wrong = files
    .filter((file) => !OF_SOME_TYPES.has(file))
    .flatMap((file) => namedIn(file).map((type) => `${file} names ${type}`))
  t.same(wrong, [])
  const needless = [...OF_SOME_TYPES.keys()].filter((file) => namedIn(file).length === 0)
  t.same(needless, [], 'each exception is one')
  t.end()
})

function namedIn(file: string): readonly string[] {
  const text = readFileSync(join(STORE, file), 'utf8')
  const types = [...text.matchAll(/['"`]([A-Z][A-Za-z]+)['"`/]/g)].map(([, name = '']) => name)
  const constants = /import [^\n]*\b(SUBSCRIPTION|SEARCH_PARAMETER|BOT)\b/.exec(text) ?? []
  const named = types.filter((type) => type !== TENANT && isResourceType(type))
  return [...named, ...constants.slice(1)]
}

t.test('writes of guarded elements, code, memberships and the audit trail have a rule', (t) => {
  const { rules } = writeFeatures()
  const checked = rules.flatMap(({ type, check }) => (check === undefined ? [] : [type]))
  const guarded = [...guardedBy('elements', 'url', 'rule'), 'ProjectMembership']
  t.same(checked.toSorted(), guarded.toSorted())
  t.equal(new Set(rules.map(({ type }) => type)).size, rules.length, 'a type has one rule')
  t.end()
})

function guardedBy(...ways: readonly string[]): readonly string[] {
  return Object.keys(GUARDS).filter((type) => ways.includes(GUARDS[type]?.by ?? ''))
}

t.test(
  'every type that the service acts upon has a row and a reason in the table of guards',
  (t) => {
    const named = ['shared', 'server', 'worker'].flatMap((root) => typesNamedBelow(root))
    const acted = new Set([...named, ...resourceTypes.filter(isPlatformType)])
    t.same(Object.keys(GUARDS).toSorted(), [...acted].toSorted())
    for (const [type, { reason }] of Object.entries(GUARDS)) t.ok(reason.length > 10, type)
    t.end()
  },
)

t.test('the table of guards agrees with the tables of policies', (t) => {
  t.same(guardedBy('type').toSorted(), [...NAMED_WRITE_TYPES].toSorted())
  const registry = [...guardedBy('registry'), 'DomainConfiguration']
  t.same(registry.toSorted(), [...REGISTRY_TYPES].toSorted())
  t.end()
})

/** Returns the types named in the service code; the console is a client. */
function typesNamedBelow(root: string): readonly string[] {
  const folder = join(import.meta.dirname, '../../..', root)
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts') && !/^console|guarded\//.test(file))
    .flatMap((file) => {
      const text = readFileSync(join(folder, file), 'utf8')
      const texts = text.matchAll(/['"`]([A-Z][A-Za-z]+)['"`/?]/g)
      return [...texts].flatMap(([, name = '']) => (isResourceType(name) ? name : []))
    })
}
