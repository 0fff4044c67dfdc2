/** Criteria of a policy entry in words. */

import { type Condition, splitCriteria } from '../../client/policies.ts'
import explain from '../../texts/explain.json' with { type: 'json' }
import { fill } from '../../texts/texts.ts'
import { RecordTitle } from '../resources/values.tsx'

const words = explain.rule
const REFERENCE = /^[A-Z][A-Za-z]+\/[A-Za-z0-9.-]{1,64}$/

interface Props {
  readonly type: string
  readonly criteria: string | undefined
}

export function Rule({ type, criteria }: Props) {
  const conditions = splitCriteria(criteria)
  if (conditions.length === 0) return <>{words.all}</>
  return (
    <>
      {conditions.map((condition, place) => (
        <span key={condition.parameter + condition.value}>
          {place > 0 && ` ${words.and} `}
          <ConditionText type={type} condition={condition} />
        </span>
      ))}
    </>
  )
}

interface ConditionProps {
  readonly type: string
  readonly condition: Condition
}

function ConditionText({ type, condition: { parameter, value } }: ConditionProps) {
  const isId = parameter === '_id' && !value.includes(',')
  const reference = isId ? `${type}/${value}` : REFERENCE.test(value) ? value : undefined
  const phrase = parameterPhrase(parameter)
  return (
    <>
      {phrase} {reference === undefined ? value : <RecordTitle reference={reference} />}
    </>
  )
}

/** `subject:Patient.organization` is "those whose subject has organization". */
function parameterPhrase(parameter: string): string {
  if (parameter === '_id') return words.id
  if (parameter === '_compartment') return words.compartment
  const steps = parameter.split('.')
  const last = steps.pop() ?? ''
  if (last.startsWith('_has:')) {
    const [, other = '', , searched = ''] = last.split(':')
    const [owned, plain] = [words.ownerReferredTo, words.referredTo]
    return fill(steps.length > 0 ? owned : plain, { owner: owners(steps), other, searched })
  }
  if (steps.length === 0) return fill(words.parameter, { parameter: last })
  return fill(words.chain, { owner: owners(steps), parameter: last })
}

function owners(steps: readonly string[]): string {
  return steps.map((step) => step.replace(/:.*/, '')).join(words.owner)
}
