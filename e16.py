from lab import *; import tasks; from whale.domains.math.verifier import judge_flexible as J, judge; from whale.domains.math.catalogue import MathCatalogue
tk=tasks.get(); model=load(); torch.manual_seed(0)
for seed,cap in (("plain",40),("shown",40)):
    src=MathCatalogue(seed).render({}); t0=time.time(); rs=Lab(model,cap).run(src,tk['test'],2,J)
    print(seed,cap,table(rs),f"{time.time()-t0:.0f}s strict",sum(judge(r['answer'],r['task'].reference).reward for r in rs)/len(rs),flush=True)
