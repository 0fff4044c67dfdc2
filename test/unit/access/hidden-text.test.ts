/** Redaction of the stored text equals redaction of the parsed resource, wherever else the names occur. */
import t from 'tap'
import { removeJsonPaths } from '../../../shared/access/fields/fields.ts'
import { withoutPaths } from '../../../shared/access/paths.ts'
import type { Resource } from '../../../shared/fhir/resource.ts'

const OBSERVATION = {
  resourceType: 'Observation',
  id: '1',
  status: 'final',
  code: { text: 'issued' },
  issued: '2020-01-01T00:00:00Z',
  _issued: { extension: [{ url: 'urn:issued', valueString: 'x' }] },
  valueQuantity: { value: 1, unit: 'a "}],"issued":1' },
  component: [{ code: { text: 'c' }, valueQuantity: { value: 2 } }],
}
const CONTAINED = {
  resourceType: 'Observation',
  status: 'final',
  issued: '2019-01-01T00:00:00Z',
}

const CASES: readonly (readonly [name: string, resource: Resource, paths: readonly string[]])[] = [
  ['a member that no other is called like', OBSERVATION, ['issued']],
  ['the last member', { resourceType: 'Observation', status: 'final', issued: 'x' }, ['issued']],
  ['an absent one', { resourceType: 'Observation', status: 'final' }, ['issued']],
  [
    'its name in a text',
    { resourceType: 'Observation', note: [{ text: ',"issued":"x"' }] },
    ['issued'],
  ],
  [
    'a name in a text, escaped twice',
    { resourceType: 'Observation', note: [{ text: '\\","issued":"x"' }] },
    ['issued'],
  ],
  ['one of a contained resource stays', { ...OBSERVATION, contained: [CONTAINED] }, ['issued']],
  [
    'a contained one alone stays',
    { resourceType: 'Observation', contained: [CONTAINED] },
    ['issued'],
  ],
  [
    'one that is misplaced elsewhere',
    { resourceType: 'Observation', code: { text: 'c', issued: 'x' }, issued: 'y' },
    ['issued'],
  ],
  ['a choice whose forms are elsewhere, too', OBSERVATION, ['value']],
  ['a form of a choice', OBSERVATION, ['valueQuantity']],
  ['several', OBSERVATION, ['status', 'issued', 'code']],
  ['a part of one', OBSERVATION, ['component.value', 'issued']],
  [
    'an element that a contact has as well',
    { resourceType: 'Patient', contact: [{ gender: 'male' }] },
    ['gender'],
  ],
  [
    'of types that contain resources',
    {
      resourceType: 'Bundle',
      entry: [{ resource: { resourceType: 'Bundle', timestamp: 'x' } }],
      timestamp: 'y',
    },
    ['timestamp'],
  ],
]

for (const [name, resource, paths] of CASES) {
  t.test(name, async (t) => {
    const text = removeJsonPaths(resource.resourceType, JSON.stringify(resource), paths)
    t.same(JSON.parse(text), withoutPaths(resource, paths))
    t.equal(text, JSON.stringify(withoutPaths(resource, paths)))
  })
}
