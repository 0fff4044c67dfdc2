/** Drops what features have cached of resources that have changed. */
import { forgetFound } from '../bots/execute-bot.ts'
import type { Change } from '../platform/redis/changes.ts'
import { forgetQuestionnaires } from '../rest/questionnaires.ts'
import { forgetLists } from '../rest/search/codes.ts'
import type { Services } from '../services.ts'
import { forgetBoundCodes } from '../terminology/bound-codes.ts'

export function forgetChanged(services: Services, changes: readonly Change[] | 'everything'): void {
  const types = changes === 'everything' ? undefined : new Set(changes.map(({ type }) => type))
  const has = (...names: readonly string[]) =>
    types === undefined || names.some((name) => types.has(name))
  if (has('Bot')) forgetFound(services)
  if (has('StructureDefinition')) services.profiles.forget()
  if (has('Questionnaire')) forgetQuestionnaires()
  if (!has('ValueSet', 'CodeSystem')) return
  forgetBoundCodes()
  forgetLists()
}
