/** Where inputs of imports come from. */
import type { Config } from '../../config/config.ts'

type Rules = Pick<Config, 'hookTargets'>

/** Where only public addresses are called they are called by https. */
export function takesHttp({ hookTargets }: Rules): boolean {
  return hookTargets.reach !== 'public'
}

/** Undefined for what is no such address; `base` is what a relative one stands in. */
export function importAddress(rules: Rules, text: string, base?: string): URL | undefined {
  const url = URL.canParse(text, base) ? new URL(text, base) : undefined
  const isKnown = url?.protocol === 'https:' || (url?.protocol === 'http:' && takesHttp(rules))
  return isKnown ? url : undefined
}
